"use strict";
/* Draws a page's figures. Those of a table are drawn from the rows that the filters leave, thinned to what the eye
   can tell apart: a curve to CURVE_POINTS, a cloud to one point in each cell of a grid, CLOUD_CELLS cells a side. */
(async () => {
  const CURVE_POINTS = 400, CLOUD_CELLS = 80, TIME_BINS = 24, LISTED_ROWS = 15, MARGIN_PX = 60;
  const COLOR_NAMES = ["surface", "text", "faint", "line", "grid", "control", "band", "low", "high"]
    .concat(["blue", "orange", "teal", "purple", "pink", "olive", "gray", "red"]);
  const root = document.documentElement;
  const element = (id) => document.getElementById(id);
  const content = JSON.parse(element("content").textContent);

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(element(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  }

  /* ---------- words ---------- */
  const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
  const us = (value) => `${Number(value.toPrecision(4))} us`;
  const tflops = (row) => table.number("flop")[row] / (table.number(table.measured ? "measured_us" : "predicted_us")[row] * 1e6);
  const size = (row) => ["m", "n", "k"].map((name) => table.number(name)[row]).join(" x ");
  const kernel = (row) => ["type", "tile", "cluster", "schedule", "family"].map((name) => table.text(name, row)).filter(Boolean).join(" ");

  /* ---------- columns ---------- */
  const table = content.columns ? { rows: content.columns.rows, of: {} } : null;
  if (table) {
    const blob = await unpacked("columns");
    const types = { Float32Array, Uint8Array, Uint16Array };
    for (const { name, type, start, names } of content.columns.columns)
      table.of[name] = { values: new types[type](blob, start, table.rows), names };
    const number = (name) => table.of[name]?.values;
    table.number = number;
    table.text = (name, row) => table.of[name] ? table.of[name].names[table.of[name].values[row]] : "";
    table.measured = Boolean(number("measured_us"));
    const sorted = (key) => Uint32Array.from(key.keys()).sort((a, b) => key[a] - key[b]);
    table.error = table.measured
      ? number("predicted_us").map((value, row) => value / number("measured_us")[row] - 1) : null;
    table.byTime = sorted(number(table.measured ? "measured_us" : "predicted_us"));
    table.byRatio = table.measured ? sorted(table.error) : table.byTime;
    table.bySpeed = table.measured ? null : sorted(Float64Array.from(table.byTime.keys(), tflops));
    table.byError = table.measured ? sorted(table.error.map(Math.abs)) : table.byTime;
  }

  function described(row) {
    const lines = [`<b>${size(row)}</b>`, kernel(row), `predicted ${us(table.number("predicted_us")[row])}`];
    if (table.measured) lines.push(`measured ${us(table.number("measured_us")[row])} (${percent(table.error[row])} off)`);
    lines.push(`limited by ${table.text("limiter", row)}`, `row ${row + 1}`);
    return lines.join("<br>");
  }

  /* ---------- colours ---------- */
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const colorOf = {};
  /* Read once for each mode: to ask while plots are drawn makes the browser lay out the page each time. */
  function readColors() {
    const style = getComputedStyle(root);
    for (const name of COLOR_NAMES) colorOf[`@${name}`] = style.getPropertyValue(`--${name}`).trim();
    colorOf["@scale"] = [[0, colorOf["@low"]], [1, colorOf["@high"]]];
  }
  const palette = (names) => names.map((_, code) => colorOf[content.colors[code % content.colors.length]]);
  const themed = (value) => {
    if (typeof value === "string") return value[0] === "@" ? colorOf[value] : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(themed);
    if (value && typeof value === "object" && !ArrayBuffer.isView(value))
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)]));
    return value;
  };

  function layoutOf(own, height, narrow, fixed) {
    const font = { color: "@text", size: narrow ? 12 : 13, family: "system-ui, DejaVu Sans, sans-serif" };
    const axis = {
      gridcolor: "@grid", linecolor: "@line", zerolinecolor: "@line", tickfont: { color: "@faint" },
      automargin: !fixed, fixedrange: narrow,
    };
    const titled = (given = {}) => ({
      ...axis, ...given, title: { text: given.title, font: { color: "@faint", size: font.size }, standoff: 8 },
    });
    const axes = Object.fromEntries(
      Object.keys({ xaxis: 0, yaxis: 0, ...own }).filter((key) => /^[xy]axis/.test(key)).map((key) => [key, titled(own[key])]));
    return themed({
      paper_bgcolor: "@surface", plot_bgcolor: "@surface", font, height, hovermode: "closest",
      // Margins that fit themselves make Plotly draw twice.
      margin: fixed ? { l: 68, r: 14, t: 12, b: 52 } : { l: 8, r: 14, t: 12, b: 8 }, showlegend: false, dragmode: narrow ? false : "zoom",
      hoverlabel: { bgcolor: "@surface", bordercolor: "@control", font: { color: "@text", size: 13 }, align: "left" },
      ...own, ...axes,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: "@text" }, itemclick: false, itemdoubleclick: false, itemsizing: "constant" },
    });
  }

  /* ---------- figures of the rows that are left ---------- */
  const spread = (rows, count) => {
    if (rows.length <= count) return [...rows.keys()];
    return Array.from({ length: count }, (_, i) => Math.round((i * (rows.length - 1)) / (count - 1)));
  };

  const ratioTicks = [0.125, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8];

  function sCurve(kept) {
    const rows = table.byRatio.filter((row) => kept[row]);
    const places = spread(rows, CURVE_POINTS);
    const shown = places.map((place) => rows[place]);
    return {
      traces: [{
        type: "scatter", mode: "lines", x: places, y: shown.map((row) => 1 + table.error[row]), line: { color: "@blue", width: 2.5 },
        text: shown.map(described), hoverinfo: "text",
      }],
      layout: {
        hovermode: "x", xaxis: { title: "kernel, sorted by ratio" },
        yaxis: { title: "predicted / measured", type: "log", tickvals: ratioTicks, ticktext: ratioTicks.map((tick) => `${tick}x`) },
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: "@faint", width: 1.5, dash: "dot" } }],
      },
    };
  }

  /* A cloud on two logarithmic axes, coloured by limiter. */
  function cloud(kept, x, y) {
    const range = (of) => {
      let low = Infinity, high = 0;
      for (let row = 0; row < table.rows; row++)
        if (kept[row]) { const value = of(row); if (value < low) low = value; if (value > high) high = value; }
      return [low, high];
    };
    const [xLow, xHigh] = range(x), [yLow, yHigh] = range(y);
    const xScale = (CLOUD_CELLS - 1) / Math.log(xHigh / xLow || 2), yScale = (CLOUD_CELLS - 1) / Math.log(yHigh / yLow || 2);
    const seen = new Uint8Array(CLOUD_CELLS * CLOUD_CELLS);
    const rows = [];
    for (let row = 0; row < table.rows; row++) {
      if (!kept[row]) continue;
      const column = Math.round(xScale * Math.log(x(row) / xLow)) || 0, line = Math.round(yScale * Math.log(y(row) / yLow)) || 0;
      const cell = column * CLOUD_CELLS + line;
      if (!seen[cell]) { seen[cell] = 1; rows.push(row); }
    }
    // One trace, its legend being the limiter's filters: a trace and a legend entry each would take twice as long.
    const limiter = table.of.limiter, colors = palette(limiter.names);
    const traces = [{
      type: "scatter", mode: "markers", x: rows.map(x), y: rows.map(y), text: rows.map(described), hoverinfo: "text",
      marker: { color: rows.map((row) => colors[limiter.values[row]]), size: 5, opacity: 0.75 },
    }];
    return { traces, x: [xLow, xHigh], y: [yLow, yHigh] };
  }

  function predictedMeasured(kept) {
    const predicted = table.number("predicted_us"), measured = table.number("measured_us");
    const drawn = cloud(kept, (row) => measured[row], (row) => predicted[row]);
    const ends = [Math.min(drawn.x[0], drawn.y[0]), Math.max(drawn.x[1], drawn.y[1])];
    return {
      traces: [{ type: "scatter", mode: "lines", x: ends, y: ends, line: { color: "@faint", width: 1.5, dash: "dot" }, hoverinfo: "skip", showlegend: false }, ...drawn.traces],
      layout: { xaxis: { title: "measured (us)", type: "log", dtick: 1 }, yaxis: { title: "predicted (us)", type: "log", dtick: 1 } },
    };
  }

  /* Median ratio and the band of 80 % of the kernels, by measured time: equal shares of the rows, fastest first. */
  function ratioByTime(kept) {
    const rows = table.byTime.filter((row) => kept[row]), measured = table.number("measured_us");
    const bins = Math.max(1, Math.min(TIME_BINS, rows.length >> 3));
    const parts = Array.from({ length: bins }, (_, i) => rows.slice((i * rows.length) / bins, ((i + 1) * rows.length) / bins));
    const ratios = parts.map((part) => Float64Array.from(part, (row) => 1 + table.error[row]).sort());
    const x = parts.map((part) => measured[part[part.length >> 1]]);
    const at = (share) => ratios.map((sorted) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]);
    const [low, middle, high] = [0.1, 0.5, 0.9].map(at);
    const text = parts.map((part, i) => `<b>around ${us(x[i])}</b>, ${part.length} kernels<br>median ${middle[i].toFixed(3)}x, 80 % within ${low[i].toFixed(3)}x and ${high[i].toFixed(3)}x`);
    const line = (y, rest) => ({ type: "scatter", mode: "lines", x, y, hoverinfo: "skip", line: { width: 0 }, ...rest });
    return {
      traces: [
        line(low), line(high, { fill: "tonexty", fillcolor: "@band" }),
        line(middle, { line: { color: "@blue", width: 2.5 }, mode: "lines+markers", text, hoverinfo: "text" }),
      ],
      layout: {
        hovermode: "x", xaxis: { title: "measured (us)", type: "log", dtick: 1 }, yaxis: { title: "predicted / measured" },
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: "@faint", width: 1.5, dash: "dot" } }],
      },
    };
  }

  function throughput(kept, { dram_bytes_per_us: dram, peaks }) {
    const bytes = table.number("dram_bytes"), flop = table.number("flop");
    const drawn = cloud(kept, (row) => flop[row] / bytes[row], tflops);
    const [low, high] = [drawn.x[0] / 1.5, drawn.x[1] * 1.5];
    const lines = Object.entries(peaks).map(([name, peak], i) => {
      const ridge = (peak * 1e6) / dram;
      return {
        type: "scatter", mode: "lines", x: [low, Math.max(ridge, low), high], y: [Math.min((dram * low) / 1e6, peak), peak, peak],
        line: { color: i ? "@gray" : "@text", width: 1.5, dash: ["solid", "dash", "dot"][i % 3] }, name: `peak ${name}`,
        text: `${name}: ${peak.toFixed(0)} TFLOP/s, DRAM ${(dram / 1e6).toFixed(2)} TB/s`, hoverinfo: "text",
      };
    });
    return {
      traces: [...lines, ...drawn.traces],
      layout: {
        xaxis: { title: "FLOP for each DRAM byte", type: "log", dtick: 1 },
        yaxis: { title: `TFLOP/s, ${table.measured ? "measured" : "predicted"}`, type: "log", dtick: 1 },
      },
    };
  }

  /* Tile against cluster: the median of what `value` says of the rows of a cell, which come in its order. */
  function tileMap(kept, narrow, ordered, value, label, show, unit) {
    const tile = table.of.tile, cluster = table.of.cluster, limiter = table.of.limiter;
    const area = (name) => name.split("x").reduce((product, extent) => product * Number(extent), 1);
    const by = (names) => [...names.keys()].sort((a, b) => area(names[a]) - area(names[b]) || names[a].localeCompare(names[b]));
    const cells = Array.from({ length: tile.names.length * cluster.names.length }, () => []);
    for (const row of ordered) if (kept[row]) cells[tile.values[row] * cluster.names.length + cluster.values[row]].push(row);
    const usual = (rows) => {
      const counts = new Uint32Array(limiter.names.length);
      for (const row of rows) counts[limiter.values[row]]++;
      return limiter.names[counts.indexOf(Math.max(...counts))];
    };
    const at = (t, c) => cells[t * cluster.names.length + c];
    const clusters = by(cluster.names), tiles = by(tile.names).filter((t) => clusters.some((c) => at(t, c).length));
    // Many tiles, few clusters: tiles run along the page's longer side.
    const grid = (of) => (narrow ? tiles.map((t) => clusters.map((c) => of(t, c))) : clusters.map((c) => tiles.map((t) => of(t, c))));
    const median = (rows) => value(rows[rows.length >> 1]);
    const names = { tile: tiles.map((t) => tile.names[t]), cluster: clusters.map((c) => cluster.names[c]) };
    const [x, y] = narrow ? ["cluster", "tile"] : ["tile", "cluster"];
    return {
      height: 110 + names[y].length * (narrow ? 24 : 44),
      traces: [{
        type: "heatmap", x: names[x], y: names[y], colorscale: "@scale", showscale: false, xgap: 2, ygap: 2,
        z: grid((t, c) => (at(t, c).length ? median(at(t, c)) : null)),
        text: grid((t, c) => (at(t, c).length ? show(median(at(t, c))) : "")), texttemplate: "%{text}", textfont: { color: "@text" }, hoverinfo: "text",
        hovertext: grid((t, c) => (at(t, c).length
          ? `<b>${tile.names[t]}, cluster ${cluster.names[c]}</b><br>${label} ${show(median(at(t, c)))} ${unit}<br>${at(t, c).length} rows, mostly limited by ${usual(at(t, c))}` : "")),
      }],
      layout: {
        xaxis: { title: x === "tile" ? "CTA tile" : "cluster", type: "category", tickangle: narrow ? 0 : -90, dtick: 1 },
        yaxis: { title: y === "tile" ? "CTA tile" : "cluster", type: "category", dtick: 1 },
        margin: { l: 78, r: 14, t: 12, b: narrow ? 52 : 84 },
      },
    };
  }

  const drawTable = {
    s_curve: sCurve,
    predicted_measured: predictedMeasured,
    ratio_by_time: ratioByTime,
    throughput,
    error_map: (kept, _, narrow) => tileMap(kept, narrow, table.byError, (row) => Math.abs(table.error[row]), "median error", (value) => (100 * value).toFixed(1), "%"),
    speed_map: (kept, _, narrow) => tileMap(kept, narrow, table.bySpeed, tflops, "median", (value) => value.toFixed(0), "TFLOP/s"),
  };

  /* ---------- the page ---------- */
  const plots = content.figures.map((figure, index) => {
    const panel = document.createElement("section");
    panel.className = figure.wide ? "panel wide" : "panel";
    panel.setAttribute("aria-labelledby", `title-${index}`);
    const title = Object.assign(document.createElement("h2"), { id: `title-${index}`, textContent: figure.title });
    const note = Object.assign(document.createElement("p"), { textContent: figure.note });
    const plot = Object.assign(document.createElement("div"), { className: "plot", id: `plot-${index}` });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${figure.title}. ${figure.note}`);
    plot.style.minHeight = `${figure.height_px}px`;
    plot.style.minWidth = `${figure.min_width_px ?? 0}px`;
    const frame = Object.assign(document.createElement("div"), { className: "frame" });
    if (figure.min_width_px) Object.assign(frame, { tabIndex: 0, role: "region", ariaLabel: figure.title });
    frame.append(plot);
    panel.append(title, note, frame);
    element("figures").append(panel);
    return plot;
  });

  function keptRows() {
    const kept = new Uint8Array(table.rows).fill(1);
    for (const field of element("filters").querySelectorAll("fieldset")) {
      const boxes = [...field.querySelectorAll("input")];
      if (boxes.every((box) => box.checked)) continue;
      const codes = table.of[field.dataset.column].values;
      for (let row = 0; row < table.rows; row++) if (!boxes[codes[row]].checked) kept[row] = 0;
    }
    return kept;
  }

  function say(kept, count) {
    let text = `${count.toLocaleString("en")} of ${table.rows.toLocaleString("en")} rows`;
    if (table.measured && count) {
      const errors = new Float32Array(count);
      let mean = 0, place = 0;
      for (const row of table.byError)
        if (kept[row]) { errors[place] = Math.abs(table.error[row]); mean += errors[place++] / count; }
      const at = (share) => errors[Math.min(count - 1, Math.floor(share * count))];
      text += `: mean error ${percent(mean)}, median ${percent(at(0.5))}, 95th percentile ${percent(at(0.95))}`;
    }
    element("status").textContent = count ? text : "No row is left: switch a filter on again.";
  }

  function listRows(kept) {
    const [order, falling] = { error: [table.byError, true], slow: [table.byTime, true], fast: [table.byTime, false], file: [null, false] }[element("order").value];
    const shown = [];
    for (let i = 0; i < table.rows && shown.length < LISTED_ROWS; i++) {
      const row = order ? order[falling ? table.rows - 1 - i : i] : i;
      if (kept[row]) shown.push(row);
    }
    const heads = ["m x n x k", "kernel", "limiter", "predicted", ...(table.measured ? ["measured", "error"] : []), "TFLOP/s"];
    const cells = (row) => [
      size(row), kernel(row), table.text("limiter", row), us(table.number("predicted_us")[row]),
      ...(table.measured ? [us(table.number("measured_us")[row]), percent(table.error[row])] : []), tflops(row).toFixed(1),
    ];
    const line = (tag, texts) => {
      const tr = document.createElement("tr");
      tr.append(...texts.map((textContent) => Object.assign(document.createElement(tag), { textContent })));
      return tr;
    };
    const head = document.createElement("thead"), body = document.createElement("tbody");
    head.append(line("th", heads));
    body.append(...shown.map((row) => line("td", cells(row))));
    element("row-table").replaceChildren(head, body);
  }

  /* Figures in view are drawn at once, the others when the reader comes to them. */
  const stale = new Set();
  let kept = null;
  const inView = (plot) => {
    const { top, bottom } = plot.getBoundingClientRect();
    return bottom > -MARGIN_PX && top < innerHeight + MARGIN_PX;
  };

  function drawFigure(index) {
    stale.delete(index);
    const figure = content.figures[index], narrow = innerWidth < 600;
    const { traces, layout, height } = figure.kind ? drawTable[figure.kind](kept, figure.settings, narrow) : figure;
    const whole = layoutOf(layout, height ?? figure.height_px, narrow, Boolean(figure.kind));
    return Plotly.react(plots[index], themed(traces), whole, { displayModeBar: false, responsive: true });
  }

  async function draw() {
    const started = performance.now();
    kept = table && keptRows();
    const count = table && kept.reduce((sum, each) => sum + each, 0);
    if (table) { say(kept, count); listRows(kept); }
    stale.clear();
    for (const [index, figure] of content.figures.entries()) {
      if (figure.kind && !count) Plotly.purge(plots[index]);
      else stale.add(index);
    }
    await Promise.all([...stale].filter((index) => inView(plots[index])).map(drawFigure));
    root.dataset.drawnMs = Math.round(performance.now() - started);
  }

  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries)
      if (isIntersecting && stale.has(plots.indexOf(target))) drawFigure(plots.indexOf(target));
  }, { rootMargin: `${MARGIN_PX}px` });

  function applyMode() {
    const chosen = element("mode").value;
    root.dataset.mode = chosen === "auto" ? (wantsDark.matches ? "dark" : "light") : chosen;
    readColors();
  }

  function addFilters() {
    for (const [column, heading] of Object.entries(content.columns.filters)) {
      const names = table.of[column].names;
      if (names.length < 2) continue;
      const field = document.createElement("fieldset");
      field.dataset.column = column;
      field.append(Object.assign(document.createElement("legend"), { textContent: heading }));
      for (const [code, name] of names.entries()) {
        const label = Object.assign(document.createElement("label"), { className: "chip" });
        if (column === "limiter") label.style.setProperty("--dot", `var(--${content.colors[code % content.colors.length].slice(1)})`);
        label.append(Object.assign(document.createElement("input"), { type: "checkbox", checked: true, name: `${column}:${name}` }),
          Object.assign(document.createElement("span"), { textContent: name || "not given" }));
        field.append(label);
      }
      element("filters").append(field);
    }
    const filters = element("filters");
    if (filters.childElementCount) {
      const all = Object.assign(document.createElement("button"), { type: "button", textContent: "Show all" });
      all.addEventListener("click", () => { for (const box of filters.querySelectorAll("input")) box.checked = true; draw(); });
      filters.append(all);
      filters.hidden = false;
    }
    filters.addEventListener("change", draw);
    const orders = { ...(table.measured ? { error: "largest error" } : {}), slow: "slowest", fast: "fastest", file: "place in the file" };
    element("order").append(...Object.entries(orders).map(([value, textContent]) => Object.assign(document.createElement("option"), { value, textContent })));
    element("order").addEventListener("change", () => listRows(keptRows()));
    element("rows").hidden = false;
  }

  try {
    applyMode();
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await unpacked("plotly"));
    document.head.append(script);
    if (table) addFilters();
    await draw();
    for (const plot of plots) watch.observe(plot);
    addEventListener("beforeprint", () => { for (const index of [...stale]) drawFigure(index); });
    element("mode").addEventListener("change", () => { applyMode(); draw(); });
    wantsDark.addEventListener("change", () => { applyMode(); draw(); });
    let wasNarrow = innerWidth < 600;
    addEventListener("resize", () => { if (innerWidth < 600 !== wasNarrow) { wasNarrow = !wasNarrow; draw(); } });
    root.dataset.ready = "yes";
  } catch (error) {
    element("status").textContent = `This page could not be drawn: ${error.message}`;
    throw error;
  }
})();
