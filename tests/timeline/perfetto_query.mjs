// Loads a trace with Perfetto's trace processor (compiled to WebAssembly) and prints a query's rows as JSON.
//
//   node perfetto_query.mjs ENGINE_DIR TRACE SQL
//
// ENGINE_DIR holds engine_bundle.node.js, engine.mjs and trace_processor.wasm.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [directory, tracePath, sql] = process.argv.slice(2);
console.log = console.info = console.debug = (...words) => console.error(...words);
const { EngineBase } = await import(pathToFileURL(join(directory, "engine.mjs")));

class LocalEngine extends EngineBase {
  mode = "WASM";
  id = "local";

  constructor(port) {
    super();
    this.port = port;
    port.postMessage = (data) => this.onRpcResponseBytes(data);
  }

  rpcSendRequestBytes(data) {
    this.port.onmessage({ data });
  }
}

// The bundle is written for a web worker: it looks for a worker's names and reads its WebAssembly by URL.
const wasm = readFileSync(join(directory, "trace_processor.wasm"));
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.XMLHttpRequest = class {
  open() {}
  send() {
    this.response = wasm;
  }
};
const bundle = readFileSync(join(directory, "engine_bundle.node.js"), "utf8");
vm.runInThisContext(bundle, { filename: "engine_bundle.js" });

const port = {};
globalThis.onmessage({ data: port });
await new Promise((resolve) => setTimeout(resolve, 50));

const engine = new LocalEngine(port);
await engine.parse(new Uint8Array(readFileSync(tracePath)));
await engine.notifyEof();
const result = await engine.query(sql);
const rows = [];
for (const it = result.iter({}); it.valid(); it.next()) {
  rows.push(Object.fromEntries(result.columns().map((name) => [name, it.get(name)])));
}
process.stdout.write(JSON.stringify(rows, (_, value) => (typeof value === "bigint" ? Number(value) : value)));
process.exit(0);
