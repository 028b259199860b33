// The student in onnxruntime-web, and exact search among the teacher's vectors. Every request stays in this folder.
import { AutoModel, AutoTokenizer, env } from "transformers";

Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "./", useBrowserCache: false, useWasmCache: false });

const at = (path) => new URL(path, import.meta.url).href;

async function fetched(path) {
  const response = await fetch(at(path));
  if (!response.ok) throw new Error(`${path}: HTTP status ${response.status}`);
  return response;
}

// The bytes of a gzip file, also from servers that unpack it on the way.
async function unpacked(path) {
  const bytes = await (await fetched(path)).arrayBuffer();
  const [first, second] = new Uint8Array(bytes, 0, 2);
  if (first !== 0x1f || second !== 0x8b) return bytes;
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function openModel() {
  const { wasm } = env.backends.onnx;
  wasm.wasmPaths = { mjs: at("runtime/ort-wasm-simd-threaded.mjs") };
  wasm.wasmBinary = await unpacked("runtime/ort-wasm-simd-threaded.wasm.gz");
  return AutoModel.from_pretrained("model", { dtype: "q8", device: "wasm" });
}

function unit(vector) {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}

// Load everything; the returned functions take texts and vectors (Float32Array of length 1).
export async function openDemo() {
  const about = await (await fetched("demo.json")).json();
  const [texts, buffer, tokenizer, model] = await Promise.all([
    fetched("documents.json").then((response) => response.json()),
    fetched("vectors.bin").then((response) => response.arrayBuffer()),
    AutoTokenizer.from_pretrained("model"), openModel(),
  ]);
  const { dim, documents } = about, rows = documents + about.queries.length;
  const scales = new Float32Array(buffer, 0, rows), values = new Int8Array(buffer, 4 * rows);

  // The student's vector of a query.
  async function encode(text) {
    const tokens = await tokenizer(about.prompt + text, { truncation: true, max_length: about.max_length });
    const { sentence_embedding } = await model({ input_ids: tokens.input_ids, attention_mask: tokens.attention_mask });
    return unit(sentence_embedding.data);
  }

  // The teacher's vector of a prepared query, by its number.
  const stored = (number) => unit(Float32Array.from(values.subarray((documents + number) * dim, (documents + number + 1) * dim)));

  // The nearest documents by the product with their stored vectors, best first: row, score, text.
  function search(vector, count = 10) {
    const scores = new Float32Array(documents);
    for (let row = 0, start = 0; row < documents; row += 1, start += dim) {
      let sum = 0;
      for (let place = 0; place < dim; place += 1) sum += vector[place] * values[start + place];
      scores[row] = sum * scales[row];
    }
    const order = Array.from(scores.keys()).sort((left, right) => scores[right] - scores[left]);
    return order.slice(0, count).map((row) => ({ row, score: scores[row], text: texts[row] }));
  }

  // Tokens, student and search of one query: the found documents, and milliseconds.
  async function ask(text) {
    const began = performance.now(), found = search(await encode(text));
    return { found, milliseconds: performance.now() - began };
  }

  return { about, encode, stored, search, ask, versions: { "transformers.js": env.version, "onnxruntime-web": env.backends.onnx.versions?.web } };
}

// Bytes that the browser read for this page, by part.
export function weights() {
  const found = { model: 0, runtime: 0, documents: 0, page: 0 }, base = at("./");
  for (const { name, encodedBodySize } of [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]) {
    const path = name.startsWith(base) ? name.slice(base.length) : "";
    const part = /^(model|runtime)\//.exec(path)?.[1] ?? (/^(documents\.json|vectors\.bin)/.test(path) ? "documents" : "page");
    found[part] += encodedBodySize;
  }
  return found;
}

export const median = (values) => {
  const sorted = [...values].sort((left, right) => left - right), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
