// Perfetto's trace processor as a filter: what its page would send it comes from stdin, what it answers goes to stdout.
//
//   node perfetto_engine.mjs ENGINE_DIR < requests > replies
//
// ENGINE_DIR holds engine_bundle.js and trace_processor.wasm, as Perfetto's page has them.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import vm from "node:vm";

const [directory] = process.argv.slice(2);
const asked = [];
for await (const bytes of process.stdin) asked.push(bytes);
console.log = console.info = console.debug = console.warn = console.error;
const answered = [];
const page = { postMessage: (bytes) => answered.push(bytes) };

// The bundle is written for a web worker: it looks for a worker's names, not for Node's, and reads its WebAssembly by URL.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.process = undefined;
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.name = url.split("/").at(-1);
  }
  send() {
    this.response = readFileSync(join(directory, this.name));
  }
};
vm.runInThisContext(readFileSync(join(directory, "engine_bundle.js"), "utf8"));
globalThis.onmessage({ data: page });
await new Promise((started) => setTimeout(started, 0));

page.onmessage({ data: new Uint8Array(Buffer.concat(asked)) });
process.stdout.write(Buffer.concat(answered), () => process.exit(0));
