"use strict";
// The page of `userspace-cni map --html`: search, what is pointed at, zoom. All texts are set as text, never as markup.

const facts = JSON.parse(document.getElementById("facts").textContent);
const picture = document.getElementById("picture");
const details = document.getElementById("details");
const search = document.getElementById("search");
const count = document.getElementById("count");
const items = new Map(Object.keys(facts.items).map((id) => [id, document.getElementById(id)]));
const ports = [...items].filter(([id]) => facts.items[id].port);

// --- the way from a port to the outside, and from an outside box to all ports behind it

const behind = new Map();
for (const [id, way] of Object.entries(facts.ways)) {
  for (const each of way) {
    if (!behind.has(each)) behind.set(each, new Set());
    for (const other of way) behind.get(each).add(other);
  }
}
let lit = [];
let pinned = null;

function light(id) {
  darken();
  const way = facts.ways[id] || [...(behind.get(id) || [id])];
  lit = way.map((each) => document.getElementById(each)).filter((each) => each !== null);
  for (const each of lit) each.classList.add("lit");
  picture.classList.add("lighting");
}

function darken() {
  for (const each of lit) each.classList.remove("lit");
  lit = [];
  picture.classList.remove("lighting");
}

// --- everything of what is pointed at

function tell(id, x, y) {
  const item = facts.items[id];
  const heading = document.createElement("h2");
  heading.textContent = item.title;
  const list = document.createElement("dl");
  for (const [name, value] of item.facts) {
    const term = document.createElement("dt");
    const told = document.createElement("dd");
    term.textContent = name;
    told.textContent = value;
    if (name === "problem") told.className = "problem";
    list.append(term, told);
  }
  details.replaceChildren(heading, list);
  details.hidden = false;
  const room = details.getBoundingClientRect();
  const top = Math.min(y + 12, innerHeight - room.height - 8);
  details.style.left = `${Math.max(8, leftOf(items.get(id).getBoundingClientRect(), room.width, x))}px`;
  details.style.top = `${Math.max(8, top)}px`;
  light(id);
}

// where the panel begins: beside the box, so that this stays in sight, else beside the pointer
function leftOf(box, width, x) {
  if (box.right + 10 + width <= innerWidth) return box.right + 10;
  if (box.left - 10 - width >= 0) return box.left - 10 - width;
  return x + 18 + width <= innerWidth ? x + 18 : x - 18 - width;
}

function hide() {
  if (pinned !== null) return;
  details.hidden = true;
  darken();
}

function unpin() {
  pinned = null;
  details.classList.remove("pinned");
  hide();
}

function idAt(target) {
  const group = target instanceof Element ? target.closest("g.port, g.told") : null;
  return group !== null && items.has(group.id) ? group.id : null;
}

function tellBeside(id) {
  const box = items.get(id).getBoundingClientRect();
  tell(id, box.right, box.top);
}

picture.addEventListener("pointermove", (event) => {
  if (pinned !== null || drag !== null) return;
  const id = idAt(event.target);
  if (id === null) hide();
  else tell(id, event.clientX, event.clientY);
});
picture.addEventListener("pointerleave", hide);
// of the document: Chromium would give the focus to an element of SVG that listens for it
document.addEventListener("focusin", (event) => {
  const id = idAt(event.target);
  if (id !== null && pinned === null && event.target.matches(":focus-visible")) tellBeside(id);
});
document.addEventListener("focusout", hide);
picture.addEventListener("click", (event) => {
  if (moved) return;
  const id = idAt(event.target);
  unpin();
  if (id !== null) pin(id, event.clientX, event.clientY);
});

function pin(id, x, y) {
  tell(id, x, y);
  pinned = id;
  details.classList.add("pinned");
}

addEventListener("resize", () => {
  if (pinned !== null) tellBeside(pinned);
});

// --- search: every word has to be in what is told of a port

let found = [];
let shown = -1;

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter((each) => each !== "");
  const faulty = document.getElementById("faults").getAttribute("aria-pressed") === "true";
  picture.classList.toggle("searching", words.length > 0 || faulty);
  found = [];
  shown = -1;
  for (const [id, element] of ports) {
    const item = facts.items[id];
    const isFound = words.every((word) => item.text.includes(word)) && (!faulty || item.faulty);
    element.classList.toggle("found", isFound && (words.length > 0 || faulty));
    if (isFound) found.push(id);
  }
  count.textContent = words.length > 0 || faulty ? `${found.length} of ${ports.length} ports` : `${ports.length} ports`;
}

function goOn(step) {
  if (found.length === 0) return;
  shown = (shown + step + found.length) % found.length;
  unpin();
  centre(found[shown]);
  const box = items.get(found[shown]).getBoundingClientRect();
  pin(found[shown], box.right, box.top);
  count.textContent = `${shown + 1} of ${found.length} found`;
}

search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") goOn(event.shiftKey ? -1 : 1);
});
document.getElementById("faults").addEventListener("click", (event) => {
  const button = event.currentTarget;
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  find();
});

// --- zoom and pan: the part of the picture that is seen

const whole = picture.getAttribute("viewBox").split(" ").map(Number);
let view = [...whole];
let drag = null;
let moved = false;

function show() {
  picture.setAttribute("viewBox", view.map((each) => each.toFixed(2)).join(" "));
}

function pointOf(x, y) {
  const point = new DOMPoint(x, y).matrixTransform(picture.getScreenCTM().inverse());
  return [point.x, point.y];
}

function zoom(factor, x, y) {
  const width = Math.min(whole[2] * 1.5, Math.max(whole[2] / 60, view[2] * factor));
  const scale = width / view[2];
  view = [x - (x - view[0]) * scale, y - (y - view[1]) * scale, width, view[3] * scale];
  show();
}

function zoomMiddle(factor) {
  zoom(factor, view[0] + view[2] / 2, view[1] + view[3] / 2);
}

function fit() {
  view = [...whole];
  show();
}

function centre(id) {
  const box = items.get(id).getBBox();
  const width = Math.min(view[2], Math.max(900, box.width * 5));
  const height = (width / whole[2]) * whole[3];
  view = [box.x + box.width / 2 - width / 2, box.y + box.height / 2 - height / 2, width, height];
  show();
}

picture.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * lines)) / 400), ...pointOf(event.clientX, event.clientY));
  },
  { passive: false },
);
picture.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  drag = { at: pointOf(event.clientX, event.clientY), x: event.clientX, y: event.clientY };
  moved = false;
});
picture.addEventListener("pointermove", (event) => {
  if (drag === null) return;
  if (!moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 4) return;
  if (!moved) picture.setPointerCapture(event.pointerId);
  moved = true;
  picture.classList.add("moving");
  const [x, y] = pointOf(event.clientX, event.clientY);
  view[0] += drag.at[0] - x;
  view[1] += drag.at[1] - y;
  show();
});
for (const ending of ["pointerup", "pointercancel"]) {
  picture.addEventListener(ending, () => {
    drag = null;
    picture.classList.remove("moving");
  });
}

const actions = { closer: () => zoomMiddle(0.7), farther: () => zoomMiddle(1 / 0.7), fit, scheme: changeScheme };
for (const [id, action] of Object.entries(actions)) document.getElementById(id).addEventListener("click", action);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    unpin();
    if (search.value !== "") {
      search.value = "";
      find();
    }
    return;
  }
  if (event.target === search || event.ctrlKey || event.altKey || event.metaKey) return;
  const keys = { "+": actions.closer, "-": actions.farther, 0: fit };
  const id = event.key === "Enter" ? idAt(event.target) : null;
  if (id !== null) {
    const box = items.get(id).getBoundingClientRect();
    pin(id, box.right, box.top);
  } else if (event.key === "/") {
    event.preventDefault();
    search.focus();
  } else if (keys[event.key] !== undefined) {
    keys[event.key]();
  }
});

// --- light and dark, and paper

function changeScheme() {
  const root = document.documentElement;
  const dark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.scheme = dark ? "light" : "dark";
}

let before = null;
addEventListener("beforeprint", () => {
  before = view;
  unpin();
  fit();
});
addEventListener("afterprint", () => {
  view = before || view;
  show();
});

find();
