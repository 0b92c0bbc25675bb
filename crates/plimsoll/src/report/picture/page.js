// Draws the map of an arena and the curve of live bytes over it. All numbers come from the plan, as JSON; moment 0 is
// the feeding by the host, step i runs at moment i + 1. Rectangles are
// [tensor or op, colour, first, last, until, stays, offset, bytes].
"use strict";

const plan = JSON.parse(document.getElementById("plan").textContent);
const canvas = document.getElementById("canvas");
const tip = document.getElementById("tip");
const chooser = document.getElementById("program");
const wholeButton = document.getElementById("whole");
const transientsButton = document.getElementById("transients");
const pen = canvas.getContext("2d");

const [WHAT, COLOUR, FIRST, LAST, UNTIL, STAYS, OFFSET, BYTES] = [0, 1, 2, 3, 4, 5, 6, 7];
const MARGIN = { left: 88, right: 16 };
// The order in which the curve stacks roles, by colour.
const STACK = ["weights", "optimizer", "gradients", "staging", "forward", "scratch"];
// Staying tensors thinner than this, in pixels, are drawn together with their neighbours.
const THIN = 4;
const LISTED = 8;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

let program;
let view; // moments from t0 to t1, bytes from b0 to b1; whether what stays is drawn apart, on a scale of its own
let pointer = null;
let areas; // what lies where on the canvas
let shown = []; // what can be pointed at, the last drawn last: {x, y, w, h, text}
let colours;
let asked = false; // whether the next frame draws anew

function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2;
  return `${bytes.toFixed(digits)} ${UNITS[unit]}`;
}

// The label of a tick, in the largest unit that the step between ticks is a round part of.
function tick(bytes, step) {
  const unit = [4, 3, 2, 1, 0].find((power) => step * 4 >= 1024 ** power) ?? 0;
  return `${(bytes / 1024 ** unit).toLocaleString("en", { maximumFractionDigits: 2 })} ${UNITS[unit]}`;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = { all: plan.colours.map(read) };
  for (const name of [...plan.colours, "ink", "quiet", "paper", "ground", "line", "over"]) colours[name] = read(name);
}

function choose(index) {
  program = plan.programs[index];
  transientsButton.disabled = program.transients === null;
  if (program.transients !== null && program.device.staying > plan.ceiling / 2) showTransients();
  else showWhole();
}

function show(b0, b1, apart) {
  view = { t0: 0, t1: program.moments.length, b0, b1, apart };
  wholeButton.setAttribute("aria-pressed", String(!apart));
  transientsButton.setAttribute("aria-pressed", String(apart));
  redraw();
}

const showWhole = () => show(0, plan.ceiling, false);
const showTransients = () => show(...program.transients, true);

function arrange(width, height) {
  const x = MARGIN.left;
  const w = width - MARGIN.left - MARGIN.right;
  const hostHeight = plan.hostPeak > 0 ? Math.min(130, 0.2 * height) : 0;
  const curve = { x, w, y: 26, h: Math.min(140, 0.22 * height) };
  const map = { x, w, y: curve.y + curve.h + 12 };
  const baseHeight = view.apart ? Math.min(100, 0.15 * height) : 0;
  map.h = height - map.y - 58 - (hostHeight > 0 ? hostHeight + 30 : 0) - (baseHeight > 0 ? baseHeight + 8 : 0);
  const base = { x, w, y: map.y + map.h + 8, h: baseHeight };
  const bottom = view.apart ? base.y + base.h : map.y + map.h;
  const host = { x, w, y: bottom + 80, h: hostHeight };
  areas = { curve, map, base, host, bottom };
}

const across = (area, t) => area.x + (area.w * (t - view.t0)) / (view.t1 - view.t0);
const up = (area, bytes, b0, b1) => area.y + area.h * (1 - (bytes - b0) / (b1 - b0));
const momentAt = (x) => view.t0 + ((x - areas.map.x) / areas.map.w) * (view.t1 - view.t0);

function draw() {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  arrange(width, height);
  shown = [];
  drawCurve();
  const { map, base, host } = areas;
  drawMap(map, program.device, view.b0, view.b1, plan.budget);
  if (view.apart) drawMap(base, program.device, 0, program.device.staying, plan.budget);
  drawPhases();
  drawBackward();
  drawTime();
  if (host.h > 0) {
    write(`host memory: ${size(plan.hostPeak)}`, host.x, host.y - 8, "left", colours.ink);
    drawMap(host, program.host, 0, 1.04 * plan.hostPeak, plan.hostBudget);
  }
  point();
}

function clipped(area, body) {
  pen.save();
  pen.beginPath();
  pen.rect(area.x, area.y, area.w, area.h);
  pen.clip();
  body();
  pen.restore();
}

function write(text, x, y, align, colour) {
  pen.font = "11.5px system-ui, sans-serif";
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.fillText(text, x, y);
}

function rule(x0, y0, x1, y1, colour, dash = []) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
  pen.setLineDash([]);
}

// The ground and the axis of bytes: ticks at a power of two.
function ground(area, b0, b1, what) {
  pen.fillStyle = colours.ground;
  pen.fillRect(area.x, area.y, area.w, area.h);
  const step = 2 ** Math.ceil(Math.log2((b1 - b0) / Math.max(2, area.h / 42)));
  for (let bytes = Math.ceil(b0 / step) * step; bytes <= b1; bytes += step) {
    const y = up(area, bytes, b0, b1);
    rule(area.x, y, area.x + area.w, y, colours.line);
    write(tick(bytes, step), area.x - 8, y + 4, "right", colours.quiet);
  }
  pen.save();
  pen.translate(11, area.y + area.h / 2);
  pen.rotate(-Math.PI / 2);
  write(what, 0, 0, "center", colours.quiet);
  pen.restore();
}

function drawBudget(area, budget, b0, b1) {
  const y = up(area, budget, b0, b1);
  if (y < area.y) return false;
  pen.globalAlpha = 0.16;
  pen.fillStyle = colours.over;
  pen.fillRect(area.x, area.y, area.w, Math.min(y - area.y, area.h));
  pen.globalAlpha = 1;
  if (y < area.y + area.h) rule(area.x, y, area.x + area.w, y, colours.over, [7, 4]);
  return true;
}

const liveAt = (live, role, moment) => (Array.isArray(live[role]) ? live[role][moment] : live[role]);

function drawCurve() {
  const area = areas.curve;
  const { live } = program.device;
  ground(area, 0, plan.ceiling, "live bytes");
  clipped(area, () => {
    const first = Math.max(0, Math.floor(view.t0));
    const until = Math.min(program.moments.length, Math.ceil(view.t1));
    for (let top = STACK.length - 1; top >= 0; top -= 1) {
      pen.fillStyle = colours[STACK[top]];
      pen.beginPath();
      pen.moveTo(across(area, first), area.y + area.h);
      for (let t = first; t < until; t += 1) {
        let sum = 0;
        for (let role = 0; role <= top; role += 1) sum += liveAt(live, role, t);
        const y = up(area, sum, 0, plan.ceiling);
        pen.lineTo(across(area, t), y);
        pen.lineTo(across(area, t + 1), y);
      }
      pen.lineTo(across(area, until), area.y + area.h);
      pen.fill();
    }
  });
  const inScale = drawBudget(area, plan.budget, 0, plan.ceiling);
  write(`budget ${size(plan.budget)}${inScale ? "" : ", far above"}`, area.x + area.w, 14, "right", colours.over);
  const [moment, bytes] = program.fullest;
  const x = across(area, moment + 0.5);
  if (x < area.x || x > area.x + area.w) return;
  const y = up(area, bytes, 0, plan.ceiling);
  rule(x, area.y - 4, x, y, colours.ink);
  pen.beginPath();
  pen.arc(x, y, 3.5, 0, 7);
  pen.stroke();
  const label = `peak ${size(program.peak)} at ${program.moments[moment]}`;
  const half = pen.measureText(label).width / 2;
  const right = area.x + area.w - 170;
  write(label, Math.max(area.x + half, Math.min(x, right - half)), 14, "center", colours.ink);
}

function drawMap(area, map, b0, b1, budget) {
  ground(area, b0, b1, "offset");
  clipped(area, () => {
    const inView = (r) => r[UNTIL] > view.t0 && r[FIRST] < view.t1 && r[OFFSET] < b1 && r[OFFSET] + r[BYTES] > b0;
    const rects = map.rects.filter(inView);
    const staying = rects.filter((r) => r[STAYS]).sort((a, b) => a[OFFSET] - b[OFFSET]);
    const height = (r) => (area.h * r[BYTES]) / (b1 - b0);
    let thin = [];
    for (const rect of staying) {
      if (height(rect) < THIN) {
        thin.push(rect);
        continue;
      }
      drawBand(area, thin, b0, b1);
      thin = [];
      drawRect(area, rect, b0, b1);
    }
    drawBand(area, thin, b0, b1);
    for (const rect of rects) if (!rect[STAYS]) drawRect(area, rect, b0, b1);
    drawBudget(area, budget, b0, b1);
  });
}

function drawRect(area, rect, b0, b1) {
  const x = across(area, rect[FIRST]);
  const y = up(area, rect[OFFSET] + rect[BYTES], b0, b1);
  const w = across(area, rect[UNTIL]) - x;
  const h = up(area, rect[OFFSET], b0, b1) - y;
  // Blocks of the model alternate between two shades.
  const isOdd = !rect[STAYS] && isTensor(rect) && plan.tensors[rect[WHAT]][2];
  put(area, rect[COLOUR], x, y, w, h, () => describe(rect), isOdd ? 0.78 : 1);
  const name = nameOf(rect);
  // Of what is partly out of view, the part in view is named.
  const left = Math.max(x, area.x);
  const right = Math.min(x + w, area.x + area.w);
  if (h >= 12 && right - left > 30) {
    const text = rect[STAYS] ? `${name}, ${size(rect[BYTES])}` : name;
    pen.font = "11.5px system-ui, sans-serif";
    if (pen.measureText(text).width + 8 < right - left) {
      const top = Math.max(y, area.y);
      const bottom = Math.min(y + h, area.y + area.h);
      write(text, left + 4, (top + bottom) / 2 + 4, "left", inkOn(plan.colours[rect[COLOUR]]));
    }
  }
}

const inkOn = (colour) => (colour === "gradients" || colour === "backward" ? "#1d2329" : "#ffffff");

function put(area, colour, x, y, w, h, text, alpha = 1) {
  pen.globalAlpha = alpha;
  pen.fillStyle = colours.all[colour];
  // Edges on whole pixels, so that neighbours leave no pale seam; what is thinner than that stays as it is.
  const top = Math.round(y);
  const bottom = Math.round(y + h);
  pen.fillRect(x, bottom > top ? top : y, w, bottom > top ? bottom - top : h);
  pen.globalAlpha = 1;
  if (w > 3 && h > 5) {
    pen.strokeStyle = colours.paper;
    pen.lineWidth = 0.6;
    pen.strokeRect(x, y, w, h);
  }
  shown.push({ area, x, y, w, h, text });
}

// Neighbours too thin to tell apart: the bytes of each role together, in the place of all.
function drawBand(area, rects, b0, b1) {
  if (rects.length === 0) return;
  const start = rects[0][OFFSET];
  const end = rects[rects.length - 1][OFFSET] + rects[rects.length - 1][BYTES];
  const byColour = new Map();
  for (const rect of rects) {
    if (!byColour.has(rect[COLOUR])) byColour.set(rect[COLOUR], []);
    byColour.get(rect[COLOUR]).push(rect);
  }
  const sum = (list) => list.reduce((total, rect) => total + rect[BYTES], 0);
  const stretch = (end - start) / sum(rects);
  let bottom = start;
  for (const [colour, members] of [...byColour].sort((a, b) => a[0] - b[0])) {
    const bytes = sum(members);
    const top = bottom + bytes * stretch;
    const y = up(area, top, b0, b1);
    const text = () => {
      const largest = members.sort((a, b) => b[BYTES] - a[BYTES]).slice(0, LISTED);
      const lines = [
        `${members.length} tensors, ${plan.roles[colour]}: ${size(bytes)}`,
        `between ${size(start)} and ${size(end)}, drawn together; zoom in to tell them apart`,
        ...largest.map((rect) => `${nameOf(rect)}: ${size(rect[BYTES])}`),
      ];
      if (members.length > LISTED) lines.push(`and ${members.length - LISTED} more`);
      return lines.join("\n");
    };
    const x = across(area, 0);
    put(area, colour, x, y, across(area, program.moments.length) - x, up(area, bottom, b0, b1) - y, text);
    bottom = top;
  }
}

const isTensor = (rect) => typeof rect[WHAT] === "number";
const nameOf = (rect) => (isTensor(rect) ? plan.tensors[rect[WHAT]][0] : `scratch of ${rect[WHAT]}`);

function describe(rect) {
  const bytes = rect[BYTES].toLocaleString("en");
  const lines = [nameOf(rect)];
  if (isTensor(rect)) lines.push(`${plan.tensors[rect[WHAT]][1]}, ${plan.roles[rect[COLOUR]]}`);
  lines.push(`${size(rect[BYTES])} (${bytes} bytes) at offset ${rect[OFFSET].toLocaleString("en")}`);
  if (rect[STAYS]) lines.push("stays when the program ends");
  else if (rect[FIRST] === rect[LAST]) lines.push(`only in ${program.moments[rect[FIRST]]}`);
  else lines.push(`from ${program.moments[rect[FIRST]]}`, `to ${program.moments[rect[LAST]]}`);
  return lines.join("\n");
}

function drawPhases() {
  const { x, w } = areas.map;
  const area = { x, w, y: areas.bottom + 4, h: 15 };
  clipped(area, () => {
    for (const [name, colour, first, until] of program.runs) {
      if (name === "host") continue;
      const left = Math.max(across(area, first), x);
      const right = Math.min(across(area, until), x + w);
      if (right <= left) continue;
      put(area, colour, left, area.y, right - left, area.h, () => `${name}: steps ${first - 1} to ${until - 2}`);
      if (pen.measureText(name).width + 8 < right - left) {
        write(name, left + 4, area.y + 11.5, "left", inkOn(plan.colours[colour]));
      }
    }
  });
}

function drawBackward() {
  if (program.backward === null) return;
  const { map, curve } = areas;
  const x = across(map, program.backward);
  if (x > map.x && x < map.x + map.w) rule(x, curve.y, x, areas.bottom, colours.ink, [2, 3]);
}

function drawTime() {
  const { map: { x, w }, bottom } = areas;
  const steps = program.moments.length - 2;
  const rough = Math.max(1, (view.t1 - view.t0) / Math.max(2, w / 80));
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  for (let index = Math.max(0, Math.ceil((view.t0 - 1) / step) * step); index < steps; index += step) {
    const at = across(areas.map, index + 1.5);
    if (at > x && at < x + w) write(String(index), at, bottom + 34, "center", colours.quiet);
  }
  write(`plan steps of ${program.name}, in execution order; blocks alternate in shade`, x + w / 2, bottom + 50, "center", colours.quiet);
}

const within = (box, at) => at.x >= box.x && at.x < box.x + box.w && at.y >= box.y && at.y < box.y + box.h;

// What lies under the pointer, outlined and said beside it.
function point() {
  tip.hidden = true;
  if (pointer === null) return;
  const { curve, map, base } = areas;
  if (pointer.x < map.x || pointer.x >= map.x + map.w) return;
  const moment = Math.floor(momentAt(pointer.x));
  if (program.moments[moment] === undefined) return;
  const found = shown.findLast((box) => within(box, pointer) && within(box.area, pointer));
  let text = null;
  if (found) {
    clipped(found.area, () => {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(found.x, found.y, found.w, found.h);
    });
    text = found.text();
  } else if (within(curve, pointer)) {
    const named = (name) => (name === "forward" ? "activations" : name);
    const sums = STACK.map((name, role) => [named(name), liveAt(program.device.live, role, moment)]);
    const total = sums.reduce((sum, [, bytes]) => sum + bytes, 0);
    const parts = sums.filter(([, bytes]) => bytes > 0).reverse();
    const lines = parts.map(([name, bytes]) => `${name}: ${size(bytes)}`);
    text = [program.moments[moment], `${size(total)} are held`, ...lines].join("\n");
  } else if (within(map, pointer) || within(base, pointer)) {
    text = program.moments[moment];
  }
  if (text === null) return;
  rule(pointer.x, curve.y, pointer.x, areas.bottom, colours.quiet);
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = pointer.pageX + 14 + box.width > innerWidth ? pointer.pageX - 14 - box.width : pointer.pageX + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(pointer.pageY + 14, innerHeight - box.height - 4))}px`;
}

function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

// Keeps a span within its limits: moved where it leaves them, cut where it is longer than they are.
function inLimits(low, high, least, most) {
  const length = Math.min(high - low, most - least);
  const start = Math.min(Math.max(low, least), most - length);
  return [start, start + length];
}

function setView(t0, t1, b0, b1) {
  [view.t0, view.t1] = inLimits(t0, t1, 0, program.moments.length);
  [view.b0, view.b1] = inLimits(b0, b1, 0, plan.ceiling);
  redraw();
}

// Zooms about a place of the map, given as parts of its width and height; bytes stay as they are with `onlyTime`.
function zoom(factor, px, py, onlyTime) {
  const span = (low, high, part, least) => {
    const length = Math.max((high - low) * factor, least);
    const fixed = low + part * (high - low);
    return [fixed - part * length, fixed + (1 - part) * length];
  };
  const [t0, t1] = span(view.t0, view.t1, px, 2);
  const [b0, b1] = onlyTime ? [view.b0, view.b1] : span(view.b0, view.b1, 1 - py, 4096);
  setView(t0, t1, b0, b1);
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top, pageX: event.clientX, pageY: event.clientY };
}

let held = null;
canvas.addEventListener("pointerdown", (event) => {
  held = { at: place(event), view: { ...view } };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => (held = null));
canvas.addEventListener("pointercancel", () => (held = null));
canvas.addEventListener("pointerleave", () => {
  pointer = null;
  redraw();
});
canvas.addEventListener("pointermove", (event) => {
  pointer = place(event);
  if (held) {
    const { map } = areas;
    const moments = ((held.at.x - pointer.x) / map.w) * (held.view.t1 - held.view.t0);
    const bytes = ((pointer.y - held.at.y) / map.h) * (held.view.b1 - held.view.b0);
    setView(held.view.t0 + moments, held.view.t1 + moments, held.view.b0 + bytes, held.view.b1 + bytes);
  }
  redraw();
});
canvas.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const at = place(event);
    const { map } = areas;
    const py = Math.min(1, Math.max(0, (at.y - map.y) / map.h));
    // Browsers turn the wheel sideways while Shift is held.
    const turned = event.deltaY || event.deltaX;
    zoom(Math.exp(turned / 400), (at.x - map.x) / map.w, py, event.shiftKey || !within(map, at));
  },
  { passive: false },
);
canvas.addEventListener("dblclick", showWhole);
wholeButton.addEventListener("click", showWhole);
transientsButton.addEventListener("click", showTransients);
document.getElementById("closer").addEventListener("click", () => zoom(0.5, 0.5, 0.5, false));
document.getElementById("farther").addEventListener("click", () => zoom(2, 0.5, 0.5, false));
chooser.addEventListener("change", () => choose(chooser.value));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  draw();
});

readColours();
choose(chooser.value);
new ResizeObserver(draw).observe(canvas);
