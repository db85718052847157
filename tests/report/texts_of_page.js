// Size and contrast of each text that a page shows.
const skipped = ["SCRIPT", "STYLE", "NOSCRIPT"];
const channels = (text) => text.match(/[\d.]+/g).map(Number);
const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
function ground(element) {
  for (let each = element; each; each = each.parentElement) {
    const found = channels(getComputedStyle(each).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
  if (!text || skipped.includes(element.tagName) || !element.getClientRects().length) continue;
  const style = getComputedStyle(element), ink = element instanceof SVGElement ? style.fill : style.color;
  const [high, low] = [light(channels(ink)), light(ground(element))].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize), map = Boolean(element.closest(".hm"));
  found.push({ text, size, contrast: (high + 0.05) / (low + 0.05), map });
}
return found;
