"use strict";
const token = location.hash.slice(1);
const byId = (id) => document.getElementById(id);
// What can be set: its words, the ends of its slider, whether that is logarithmic, whether numbers
// are whole, and what stands in the field where it is left open.
const SETTINGS = {
  epsilon: { words: "Privacy budget ε", ends: [0.1, 30], log: true,
    more: "smaller protects more" },
  records: { words: "Records", ends: [100, 1e7], log: true, whole: true },
  records_per_person: { words: "Records of one person, at most", ends: [1, 20], whole: true },
  persons: { words: "Different persons", ends: [100, 1e7], log: true, whole: true,
    open: "not known" },
  epochs: { words: "Passes over the data (epochs)", ends: [0, 200], open: "planned" },
  features: { words: "Columns", ends: [1, 1000], log: true, whole: true,
    more: "of a linear model of two classes" },
  without: { words: "Right pairs without privacy", ends: [0.55, 0.99],
    more: "your guess: of 100 pairs of records, one of each class, how many the same model " +
      "without privacy puts in the right order (AUC × 100)", scale: 100 },
};
let waiting = false, asked = false, start = {}, later = 0;

const short = (x) => x >= 10000 ? Math.round(x).toLocaleString("en") :
  Number(x.toPrecision(3)).toString();
// What is counted is shown to the last digit.
const counted = (x) => x.toLocaleString("en", { maximumFractionDigits: 0 });
const about = (x) => short(Number(x.toPrecision(2)));

// What reads as a bound is rounded up.
function atMost(x) {
  const near = Number(x.toPrecision(3));
  return short(near >= x ? near : near + Math.pow(10, Math.floor(Math.log10(x)) - 2));
}
const ofHundred = (x) => Math.min(100, Math.ceil(100 * x - 1e-9));

function duration(seconds) {
  if (seconds < 1) return "under 1 s";
  if (seconds < 120) return `${about(seconds)} s`;
  return seconds < 7200 ? `${about(seconds / 60)} min` : `${about(seconds / 3600)} h`;
}

// The field holds the number; the slider is another way to write into it. A comma counts only
// between thousands: elsewhere it may be a decimal one. What is no number is sent as it is, so that
// the server refuses it.
function number(name) {
  const { scale = 1 } = SETTINGS[name], text = byId(name).value.trim();
  const thousands = /^[1-9]\d{0,2}([,\s]\d{3})+(\.\d+)?$/.test(text);
  const found = Number(thousands ? text.replace(/[,\s]/g, "") : text) / scale;
  return text === "" ? null : Number.isFinite(found) ? found : text;
}

function fromSlider(name) {
  const { ends: [least, most], log, whole, scale = 1, open } = SETTINGS[name];
  const at = Number(byId(`${name}-slider`).value);
  let found = log ? Number((least * Math.pow(most / least, at)).toPrecision(3)) : at;
  if (whole || name === "epochs") found = Math.round(found);
  const left = open !== undefined && at <= Number(byId(`${name}-slider`).min);
  byId(name).value = left ? "" : written(found * scale);
}

const written = (x) => x >= 10000 ? x.toLocaleString("en", { maximumFractionDigits: 6 }) :
  String(Number(x.toPrecision(12)));

function place(name) {
  const { ends: [least, most], log, open } = SETTINGS[name], wanted = number(name);
  const slider = byId(`${name}-slider`);
  if (!(wanted > 0)) slider.value = slider.min;
  else slider.value = log ? Math.log(wanted / least) / Math.log(most / least) : wanted;
  slider.setAttribute("aria-valuetext", byId(name).value || open || "nothing");
}

function settings() {
  const found = { delta: start.delta };
  for (const name of Object.keys(SETTINGS)) found[name] = number(name);
  if (found.records_per_person <= 1) found.persons = start.persons === null ? null : found.persons;
  return found;
}

function build() {
  for (const [name, { words, more, open, ends: [least, most], log }] of Object.entries(SETTINGS)) {
    const box = document.createElement("div"), label = document.createElement("label");
    const field = document.createElement("input"), slider = document.createElement("input");
    box.className = "setting"; box.id = `${name}-box`;
    label.htmlFor = name; label.id = `${name}-label`; label.textContent = words;
    Object.assign(field, { id: name, type: "text", inputMode: "decimal", placeholder: open || "" });
    Object.assign(slider, { id: `${name}-slider`, type: "range" });
    slider.min = log ? 0 : least; slider.max = log ? 1 : most;
    slider.step = log ? 0.005 : name === "without" ? 0.01 : 1;
    slider.setAttribute("aria-labelledby", `${name}-label`);
    slider.addEventListener("input", () => { fromSlider(name); place(name); redraw(); });
    field.addEventListener("input", () => { place(name); redraw(); });
    box.append(label, field, slider);
    if (more) {
      const hint = document.createElement("small");
      hint.id = `${name}-hint`; hint.textContent = more;
      field.setAttribute("aria-describedby", hint.id);
      box.append(hint);
    }
    byId("settings").append(box);
  }
}

async function ask(path, body) {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Forethought-Token": token } });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// One question at a time; what is set when it is answered is asked next.
async function redraw() {
  byId("persons-box").hidden = !(number("records_per_person") > 1);
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
      const kept = document.body.dataset.drawn ? ". The numbers are those from before." : "";
      byId("error").textContent = error.message + kept;
      byId("answer").classList.add("stale");
    }
  } while (asked);
  waiting = false;
  if (start.job) { clearTimeout(later); later = setTimeout(measure, 700); }
}

// How long training takes is tried when nothing moves any more.
async function measure() {
  const box = byId("time");
  if (!box) return;
  try {
    const { seconds } = await ask("/time", settings());
    box.textContent = seconds === null ? "not tried" : `about ${duration(seconds)}`;
  } catch (error) {
    box.textContent = "not tried";
  }
}

function element(name, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, entry] of Object.entries(attributes)) found.setAttribute(key, entry);
  if (text !== undefined) found.textContent = text;
  return found;
}

function fact(name, text, small, id) {
  const box = document.createElement("div"), dt = document.createElement("dt");
  const dd = document.createElement("dd"), more = document.createElement("small");
  const value = document.createElement("span");
  dt.textContent = name; value.textContent = text; more.textContent = small;
  if (id) value.id = id;
  dd.append(value, more); box.append(dt, dd);
  return box;
}

function draw(found) {
  const unit = found.unit === "persons" ? "persons" : found.together > 1 ?
    `groups of ${found.together} records` : "records";
  const [alarm, power] = found.attack[1];
  byId("answer").classList.remove("stale");
  // Else the presence of a record is known; only its content is hidden.
  const finds = found.adjacency === "add-or-remove" ? "finds" : "recognises, by what they say,";
  byId("privacy").textContent = `Privacy: of 100 ${unit}, an attacker who knows all the others ` +
    `${finds} at most ${ofHundred(power)}, if ${Math.round(100 * alarm)} in 100 may be suspected ` +
    `wrongly; guessing finds ${Math.round(100 * alarm)}.`;
  drawCost(found);
  const whom = found.together > 1 ? `for any ${found.together} records together` :
    found.unit === "persons" ? "for one person, as one contribution" : "for one record";
  const tried = byId("time") ? byId("time").textContent : "…";
  byId("numbers").replaceChildren(
    fact("ε, certified", atMost(found.epsilon), `δ ${Number(atMost(found.delta)).toExponential()}, ${whom}`),
    fact("rounds", counted(found.rounds), `${short(found.epochs)} epochs`),
    fact("batch", counted(found.batch), `${found.unit}, expected`),
    fact("noise multiplier σ", found.sigma,
      `of ${counted(found.examples)} ${found.unit}`),
    ...(start.job ? [fact("time here", tried, "tried on synthetic records", "time")] : []));
  drawAttack(found.attack);
  byId("reasons").replaceChildren(...found.reasons.map(([what, why]) => {
    const row = document.createElement("li");
    row.textContent = `${what}: ${why}`;
    return row;
  }));
}

function drawCost({ cost, budgets, unit }) {
  byId("unit").textContent = unit;
  byId("without-box").hidden = cost === null;
  for (const head of document.querySelectorAll("th.pairs")) head.hidden = cost === null;
  const pairs = (x) => (100 * x).toFixed(1);
  byId("budgets").replaceChildren(...budgets.map(([at, worth, lost]) => {
    const row = document.createElement("tr"), head = document.createElement("th");
    const left = cost === null ? [] : [pairs(cost.without - lost),
      lost < 0.0005 ? "< 0.1" : pairs(lost)];
    head.scope = "row"; head.textContent = short(at);
    row.append(head, ...[worth === null ? "not known" : about(worth), ...left].map((text) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      return cell;
    }));
    if (Math.abs(at / number("epsilon") - 1) < 1e-9) row.setAttribute("aria-current", "true");
    return row;
  }));
  if (cost === null) {
    byId("accuracy").textContent = "Accuracy: what the noise costs is known beforehand of linear " +
      "models of two classes only. Rehearse this job on public data: forethought plan JOB " +
      "--rehearse --public-proxy NAME.";
    byId("caveat").textContent = "";
    return;
  }
  const extra = cost.lost < 0.01 ? "" : ` With about ${about(cost.records_needed)} ${unit} it ` +
    "would be less than 1.";
  byId("accuracy").textContent = `Accuracy: if the model without privacy puts ` +
    `${pairs(cost.without)} of 100 pairs in the right order, this noise leaves about ` +
    `${pairs(cost.expected)}: ${cost.lost < 0.0005 ? "under 0.1" : pairs(cost.lost)} lost.${extra}`;
  byId("caveat").textContent = "By a formula, of the noise alone. " +
    (cost.measured === null ? "So much noise was not tried on public tables." :
      "Columns that hardly vary are found late, whatever the noise: nine of ten of " +
      `${cost.measured[1]} runs on public tables lost at most ${pairs(cost.measured[0])}.`);
}

function drawAttack(rows) {
  const svg = byId("attack"), x = (a) => 50 + 720 * a, y = (p) => 200 - 190 * p;
  const line = (x1, y1, x2, y2, kind) => element("line", { x1, y1, x2, y2, class: kind });
  svg.setAttribute("aria-label", "What an attacker can find: " + rows.map(([a, p]) =>
    `at most ${ofHundred(p)} of 100 with ${+(100 * a).toFixed(1)} false`).join(", "));
  svg.replaceChildren(line(50, 200, 410, 200, "axis"), line(50, 10, 50, 200, "axis"),
    line(x(0), y(0), x(0.5), y(0.5), "blind"),
    element("text", { x: 230, y: 234, "text-anchor": "middle" }, "false suspicions of 100"),
    element("text", { x: 0, y: 0, transform: "translate(12 105) rotate(-90)",
      "text-anchor": "middle" }, "found of 100, at most"),
    element("polyline", { points: rows.map(([a, p]) => `${x(a)},${y(p)}`).join(" "),
      class: "line" }));
  for (const [a, p] of rows) {
    const dot = element("circle", { cx: x(a), cy: y(p), r: 4 });
    dot.append(element("title", {}, `${+(100 * a).toFixed(1)} false of 100: at most ` +
      `${ofHundred(p)} found`));
    svg.append(dot);
  }
  for (const mark of [0, 0.5, 1]) svg.append(element("text", { x: 44, y: y(mark) + 4,
    "text-anchor": "end" }, String(100 * mark)));
  for (const mark of [0, 0.25, 0.5]) svg.append(element("text", { x: x(mark), y: 216,
    "text-anchor": "middle" }, String(100 * mark)));
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
  build();
  byId("save-plan").addEventListener("click", () => save("json"));
  byId("save-job").addEventListener("click", () => save("toml"));
  for (const form of document.forms)
    form.addEventListener("submit", (event) => event.preventDefault());
  try {
    start = await ask("/start", {});
    byId("notes").textContent = start.notes.join(". ");
    byId("features-box").hidden = start.job;
    for (const [name, { scale = 1 }] of Object.entries(SETTINGS)) {
      byId(name).value = start[name] === null ? "" : written(start[name] * scale);
      place(name);
    }
    if (start.rounds) byId("epochs").placeholder = `${start.rounds} rounds`;
  } catch (error) {
    byId("error").textContent = error.message;
    return;
  }
  redraw();
}
begin();
