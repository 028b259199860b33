// The page: what the student finds next to what the teacher finds, and what both cost. Texts are never markup.
import { median, openDemo, weights } from "./engine.js";

const part = (id) => document.getElementById(id);
const show = (id, text) => { part(id).textContent = text; };
const size = (bytes) => (bytes < 1e5 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const flat = (text) => text.replace(/\s+/g, " ").trim(); // as fields of one line have it
const made = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind ?? "" });
const taken = [];

function list(id, found, others, name) {
  const ranks = new Map((others ?? []).map(({ row }, place) => [row, place + 1]));
  part(id).replaceChildren(...found.map(({ row, score, text }) => {
    const entry = made("li", "", ranks.has(row) ? "both" : ""), line = made("p", "", "found");
    line.append(made("span", score.toFixed(3)), ...(ranks.has(row) ? [made("strong", `${name} no. ${ranks.get(row)}`)] : []));
    entry.append(line, made("p", text));
    return entry;
  }));
}

const shared = (left, right) => left.filter(({ row }) => right.some((other) => other.row === row)).length;

async function answer(demo, typed) {
  const number = demo.about.queries.findIndex((text) => flat(text) === typed), prepared = number >= 0;
  const { found, milliseconds } = await demo.ask(prepared ? demo.about.queries[number] : typed);
  const teacher = prepared ? demo.search(demo.stored(number)) : null;
  list("student", found, teacher, "teacher's");
  list("teacher", teacher ?? [], found, "student's");
  part("teacher-note").hidden = prepared;
  part("prepared").value = prepared ? number : "";
  const compared = prepared ? `${shared(found, teacher)} of ${found.length} results are also the teacher's.` : "The teacher has no results for it.";
  show("status", `${milliseconds.toFixed(1)} ms for this query. ${compared}`);
  count(milliseconds);
}

function count(milliseconds) {
  taken.push(milliseconds);
  show("speed", median(taken).toFixed(1));
  show("speed-note", `a query, median of ${taken.length}`);
}

// All prepared queries, one after another: the median time, and the mean overlap with the teacher.
async function compare(demo) {
  let same = 0, most = 0;
  for (const [number, text] of demo.about.queries.entries()) {
    const { found, milliseconds } = await demo.ask(text);
    count(milliseconds);
    same += shared(found, demo.search(demo.stored(number)));
    most += found.length;
    await new Promise((done) => { setTimeout(done, 0); }); // the page stays responsive
  }
  if (most) {
    show("overlap", `${(100 * same / most).toFixed(0)}`);
    show("overlap-note", `overlap@10 with the teacher, ${demo.about.queries.length} queries`);
    part("overlap-tile").hidden = false;
  }
}

function prepare(demo, seconds) {
  const { about, versions } = demo, bytes = weights();
  document.title = `${about.name}: search in the browser`;
  show("title", about.name);
  show("about", `A student of ${about.teacher}${about.parameters ? ` with ${(about.parameters / 1e6).toFixed(1)} M parameters` : ""}, in int8, on this device. It searches ${about.documents.toLocaleString("en")} documents${about.texts ? ` of ${about.texts}` : ""} that the teacher embedded.`);
  show("size", (bytes.model / 1e6).toFixed(1));
  show("load", seconds.toFixed(1));
  show("weight", (Object.values(bytes).reduce((sum, value) => sum + value) / 1e6).toFixed(1));
  show("weights", `Page weight: model with tokenizer ${size(bytes.model)}, JavaScript and WebAssembly ${size(bytes.runtime)}, documents with the teacher's vectors ${size(bytes.documents)}, page ${size(bytes.page)}.`);
  show("versions", Object.entries(versions).map((pair) => pair.filter(Boolean).join(" ")).join(", "));
  part("prepared").append(new Option(`Choose one of ${about.queries.length}`, ""), ...about.queries.map((text, number) => new Option(flat(text), number)));
  part("prepared-field").hidden = !about.queries.length;
}

async function start() {
  const began = performance.now(), demo = await openDemo();
  await demo.encode("warm-up");
  prepare(demo, (performance.now() - began) / 1e3);
  const form = part("search"), field = part("query");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (flat(field.value)) answer(demo, flat(field.value)).catch(failed);
  });
  part("prepared").addEventListener("change", ({ target }) => {
    if (!target.value) return;
    field.value = flat(demo.about.queries[target.value]);
    form.requestSubmit();
  });
  for (const control of form.elements) control.disabled = false;
  await compare(demo);
  show("status", "Ready.");
  if (demo.about.queries.length && !field.value) {
    field.value = flat(demo.about.queries[0]);
    await answer(demo, field.value);
  }
  document.documentElement.dataset.ready = "yes";
}

function failed(error) {
  show("status", `This page could not load or search: ${error.message}`);
  document.documentElement.dataset.ready = "failed";
}

start().catch(failed);
