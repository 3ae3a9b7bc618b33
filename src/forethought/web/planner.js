"use strict";
const token = location.hash.slice(1);
const byId = (id) => document.getElementById(id);
// name: [least, most, logarithmic, whole]. Position 0 of "epochs" and "persons" leaves it open.
const SLIDERS = {
  epsilon: [0.1, 30, true, false],
  records: [100, 10000000, true, true],
  records_per_person: [1, 20, false, true],
  persons: [0, 1, false, false],
  epochs: [0, 200, false, false],
  features: [1, 1000, true, true],
};
const ORANGE = "#d55e00", BLUE = "#0072b2", GREY = "#8c959f";
let waiting = false, asked = false;

const short = (x) => x >= 10000 ? Math.round(x).toLocaleString("en") :
  Number(x.toPrecision(3)).toString();

// What reads as a bound is rounded up.
function atMost(x) {
  const near = Number(x.toPrecision(3));
  return short(near >= x ? near : near + Math.pow(10, Math.floor(Math.log10(x)) - 2));
}
const atMostPercent = (x) => `${(Math.ceil(1000 * x - 1e-9) / 10).toFixed(1)} %`;

function value(name) {
  const [least, most, log, whole] = SLIDERS[name], at = Number(byId(name).value);
  let found = log ? least * Math.pow(most / least, at) : at;
  if (log) found = Number(found.toPrecision(3));
  return whole ? Math.round(found) : found;
}

function place(name, wanted) {
  const [least, most, log] = SLIDERS[name];
  byId(name).value = log ? Math.log(wanted / least) / Math.log(most / least) : wanted;
}

function settings() {
  const records = value("records"), each = value("records_per_person");
  const epochs = Math.round(value("epochs"));
  const found = { epsilon: value("epsilon"), records, records_per_person: each,
    features: value("features"), epochs: epochs === 0 ? null : epochs, persons: null };
  if (each > 1 && value("persons") > 0) {
    // From one row each to as many as may be: people have 1 to `each` rows on average.
    const mean = 1 + (each - 1) * value("persons");
    found.persons = Math.max(1, Math.ceil(records / mean));
  }
  return found;
}

function label(found) {
  byId("epsilon-out").textContent = short(found.epsilon);
  byId("records-out").textContent = short(found.records);
  byId("records_per_person-out").textContent = found.records_per_person;
  byId("persons-out").textContent = found.persons === null ?
    (found.records_per_person > 1 ? "not known" : "one a record") :
    `${short(found.persons)} (${short(found.records / found.persons)} each)`;
  byId("persons").disabled = found.records_per_person === 1;
  byId("epochs-out").textContent = found.epochs === null ? "planner's choice" : found.epochs;
  byId("features-out").textContent = short(found.features);
}

async function ask(path, body) {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Forethought-Token": token } });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// One question at a time; where the sliders stand when it is answered is asked next.
async function redraw() {
  label(settings());
  if (waiting) { asked = true; return; }
  waiting = true;
  do {
    asked = false;
    const begun = performance.now();
    try {
      draw(await ask("/plan", settings()));
      byId("error").textContent = "";
      document.body.dataset.milliseconds = Math.round(performance.now() - begun);
      document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + 1;
    } catch (error) {
      byId("error").textContent = error.message;
      byId("numbers").classList.add("stale");
    }
  } while (asked);
  waiting = false;
}

function element(name, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, entry] of Object.entries(attributes)) found.setAttribute(key, entry);
  if (text !== undefined) found.textContent = text;
  return found;
}

function fact(name, text, small) {
  const box = document.createElement("div"), dt = document.createElement("dt");
  const dd = document.createElement("dd"), more = document.createElement("small");
  dt.textContent = name; dd.textContent = text; more.textContent = small;
  dd.append(more); box.append(dt, dd);
  return box;
}

function draw(found) {
  const percent = (x) => `${(100 * x).toFixed(1)} %`;
  const whom = found.together > 1 ? `for any ${found.together} records together` :
    found.unit === "persons" ? "for one person, as one contribution" : "for one record";
  byId("numbers").classList.remove("stale");
  byId("numbers").replaceChildren(
    fact("ε, certified", atMost(found.epsilon), `δ ${found.delta.toExponential(1)}, ${whom}`),
    fact("noise multiplier σ", short(found.sigma), `of ${short(found.examples)} ${found.unit}`),
    fact("batch", short(found.batch), `${found.unit}, expected`),
    fact("rounds", short(found.rounds), `${short(found.epochs)} epochs`),
    fact("accuracy to expect", percent(found.expected),
      `synthetic data; ${percent(found.without_noise)} without noise`),
    fact("attacker at 1 % false alarms", atMostPercent(found.attack[1][1]), "detections, at most"));
  drawAttack(found.attack);
  drawFront(found.front, found.epsilon, found.noise);
  byId("reasons").replaceChildren(...found.reasons.map(([what, why]) => {
    const row = document.createElement("li");
    row.textContent = `${what}: ${why}`;
    return row;
  }));
}

function frame(svg, x, y) {
  svg.replaceChildren(
    element("line", { x1: 50, y1: 200, x2: 410, y2: 200, stroke: GREY }),
    element("line", { x1: 50, y1: 10, x2: 50, y2: 200, stroke: GREY }),
    element("text", { x: 230, y: 234, "text-anchor": "middle" }, x),
    element("text", { x: 0, y: 0, transform: "translate(12 105) rotate(-90)",
      "text-anchor": "middle" }, y));
}

function drawAttack(rows) {
  const svg = byId("attack"), x = (a) => 50 + 720 * a, y = (p) => 200 - 190 * p;
  frame(svg, "false alarms", "detections, at most");
  svg.append(element("line", { x1: x(0), y1: y(0), x2: x(0.5), y2: y(0.5), stroke: GREY,
    "stroke-dasharray": "3 3" }));
  const points = rows.map(([a, p]) => `${x(a)},${y(p)}`).join(" ");
  svg.append(element("polyline", { points, fill: "none", stroke: BLUE, "stroke-width": 2 }));
  for (const [a, p] of rows) {
    const dot = element("circle", { cx: x(a), cy: y(p), r: 4, fill: BLUE });
    dot.append(element("title", {}, `${(100 * a).toFixed(1)} % false alarms: at most ` +
      `${atMostPercent(p)} detections`));
    svg.append(dot);
  }
  for (const mark of [0, 0.5, 1]) svg.append(element("text", { x: 44, y: y(mark) + 4,
    "text-anchor": "end" }, `${100 * mark} %`));
  for (const mark of [0, 0.25, 0.5]) svg.append(element("text", { x: x(mark), y: 216,
    "text-anchor": "middle" }, `${100 * mark} %`));
}

function drawFront(rows, epsilon, noise) {
  const svg = byId("front"), all = [...rows, [epsilon, noise]];
  frame(svg, "ε", "noise for the signal");
  const range = (at) => {
    const values = all.map((row) => Math.log10(row[at]));
    return [Math.min(...values) - 0.05, Math.max(...values) + 0.05];
  };
  const [x0, x1] = range(0), [y0, y1] = range(1);
  const x = (v) => 50 + 360 * (Math.log10(v) - x0) / (x1 - x0);
  const y = (v) => 200 - 190 * (Math.log10(v) - y0) / (y1 - y0);
  for (const [e, n] of rows) {
    const dot = element("circle", { cx: x(e), cy: y(n), r: 3, fill: BLUE, class: "candidate" });
    dot.append(element("title", {}, `ε about ${short(e)}, noise ${short(n)}`));
    svg.append(dot);
  }
  svg.append(element("circle", { cx: x(epsilon), cy: y(noise), r: 6, fill: ORANGE, id: "chosen" }));
  for (let mark = Math.ceil(x0); mark <= x1; mark++) svg.append(element("text",
    { x: x(10 ** mark), y: 216, "text-anchor": "middle" }, short(10 ** mark)));
  for (let mark = Math.ceil(y0); mark <= y1; mark++) svg.append(element("text",
    { x: 44, y: y(10 ** mark) + 4, "text-anchor": "end" }, `1e${mark}`));
}

async function save(ending) {
  try {
    const found = await ask("/save", { name: `${byId("name").value}.${ending}`,
      settings: settings() });
    byId("saved").textContent = `${found.path} is written`;
  } catch (error) {
    byId("saved").textContent = error.message;
  }
}

async function begin() {
  for (const [name, [least, most, log]] of Object.entries(SLIDERS)) {
    byId(name).min = log ? 0 : least;
    byId(name).max = log ? 1 : most;
    byId(name).addEventListener("input", redraw);
  }
  byId("save-plan").addEventListener("click", () => save("json"));
  byId("save-job").addEventListener("click", () => save("toml"));
  byId("sliders").addEventListener("submit", (event) => event.preventDefault());
  try {
    const start = await ask("/start", {});
    byId("notes").textContent = start.notes.join(". ");
    for (const name of ["epsilon", "records", "records_per_person", "features"])
      place(name, start[name]);
    place("epochs", start.epochs === null ? 0 : start.epochs);
    place("persons", start.persons === null || start.records_per_person === 1 ? 0 :
      Math.max(0.001, (start.records / start.persons - 1) / (start.records_per_person - 1)));
  } catch (error) {
    byId("error").textContent = error.message;
    return;
  }
  redraw();
}
begin();
