// The page: a list of runs, and next to it one run or the machine, kept up to date by server-sent events. Texts from
// runs are inserted as text nodes, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);

// Creates an element with properties and children; strings become text nodes.
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

const state = { runs: [], more: 0, machine: null, shown: null, listed: undefined, view: null, source: null };

async function get(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

function toast(text, bad = false) {
  const note = el("div", { class: bad ? "toast bad" : "toast", text });
  $("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 12000 : 6000);
}

// Buttons -----------------------------------------------------------------------------------------------------------------------

const BUTTONS = {
  pause: { label: "Pause", title: "Pause", text: "The run waits after the current micro-batch and keeps its memory. Losses do not change." },
  resume: { label: "Resume", title: "Resume", text: "The run continues." },
  budget: { label: "Budget…", title: "New budget for", verb: "Plan again", text: "The run finishes its step, saves, plans again within this budget and continues. If nothing fits, it continues unchanged and reports that." },
  stop: { label: "Stop", title: "Stop", text: "The run finishes its step, saves a checkpoint and ends. You can resume it later.", danger: true },
};

async function press(run, action) {
  const button = BUTTONS[action];
  const dialog = $("dialog");
  const supervised = run.kind === "supervised";
  $("ask-title").textContent = `${button.title} ${run.name}?`;
  $("ask-text").textContent = supervised && action === "pause" ? "Stops all its processes, like Ctrl-Z, until you resume it."
    : supervised && action === "stop" ? "Sends SIGINT, SIGTERM after a minute, and SIGKILL after two." : button.text;
  $("ask-field").hidden = action !== "budget";
  $("ask-problem").hidden = true;
  $("ask-input").value = "";
  $("ask-do").textContent = button.verb ?? button.label;
  $("ask-do").className = button.danger ? "main danger" : "main";
  dialog.returnValue = "cancel";
  dialog.showModal();
  (action === "budget" ? $("ask-input") : $("ask-do")).focus();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "do") return;
  const order = { action };
  if (action === "budget") order.budget = $("ask-input").value.trim();
  try {
    const response = await fetch(`api/runs/${run.id}/order`, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(order),
    });
    const body = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
    toast(`${run.name}: ${body.said}`);
  } catch (error) {
    toast(`${run.name}: ${error.message}`, true);
  }
}

// The list of runs --------------------------------------------------------------------------------------------------------------

function dotOf(run) {
  if (run.is_paused) return "dot paused";
  if (run.standing === "running") return "dot running";
  return ["diverged", "failed", "unsaved", "cut_short", "too_hot"].includes(run.standing) ? "dot bad" : "dot";
}

function showList() {
  const running = state.runs.filter((run) => run.standing === "running");
  const ended = state.runs.filter((run) => run.standing !== "running");
  const item = (run) => {
    const canvas = el("canvas", { "aria-hidden": "true" });
    sparkline(canvas, run.sparkline);
    // The mark and the group already show that a run is running.
    const words = [
      run.standing === "running" && !run.is_paused ? null : run.standing_words,
      run.standing !== "finished" && (run.step || run.last_step) ? `step ${Format.count(run.step)}` : null,
      run.loss == null ? null : `loss ${Format.number(run.loss, 3)}`,
    ].filter(Boolean);
    const bar = el("div", { class: "bar" }, el("i"));
    bar.firstChild.style.width = `${100 * (run.done ?? 0)}%`;
    return el("a", { class: "run", href: `#/run/${run.id}`, "aria-current": run.id === state.shown ? "page" : null },
      el("b", {}, el("span", { class: dotOf(run) }), run.name), canvas,
      el("small", { text: words.join(" · ") || run.standing_words }),
      run.standing === "running" && run.done != null ? bar : null);
  };
  const group = (title, runs) => (runs.length ? [el("p", { class: "group", text: title }), ...runs.map(item)] : []);
  const nav = $("runs");
  const [across, down] = [nav.scrollLeft, nav.scrollTop];
  nav.replaceChildren(
    el("a", { class: "run", href: "#/", "aria-current": state.shown ? null : "page" }, el("b", { text: "Machine" }), el("span"), el("small", { text: machineWords() })),
    ...group("Running", running), ...group("Earlier", ended));
  if (state.more) nav.append(el("p", { class: "group", text: `and ${state.more} older` }));
  if (!state.runs.length) nav.append(el("p", { class: "note", text: "No runs yet. `plimsoll train` starts one." }));
  [nav.scrollLeft, nav.scrollTop] = [across, down];
  if (state.listed !== state.shown) {
    // On narrow screens, scroll the list to the selected run.
    const shown = nav.querySelector("[aria-current]");
    if (shown) nav.scrollLeft += shown.getBoundingClientRect().left - nav.getBoundingClientRect().left - 12;
    state.listed = shown ? state.shown : state.listed;
  }
}

function machineWords() {
  const cards = state.machine?.cards ?? [];
  if (!state.machine) return "…";
  if (!cards.length) return `CPU ${Format.percent(state.machine.system?.cpu_percent)}`;
  const heat = cards.map(({ card }) => (card.temperature_c == null ? null : `${Math.round(card.temperature_c)} °C`));
  return `${cards.length} GPU${cards.length > 1 ? "s" : ""} · ${heat.filter(Boolean).join(", ") || "–"}`;
}

// Parts of views ----------------------------------------------------------------------------------------------------------------

function panel(title, size, tools, ...body) {
  return el("section", { class: `panel ${size}` }, el("header", {}, el("h2", { text: title }), el("span", { class: "grow" }), tools), ...body);
}

const SHARES = { ours: "these runs", planned: "planned, not yet used", others: "others", free: "free", reserved: "driver" };

function segments(memory) {
  const bar = el("div", { class: "segments" });
  const key = el("ul", { class: "key" });
  for (const { share, bytes } of memory.segments) {
    const part = el("i", { title: `${SHARES[share]}: ${Format.bytes(bytes)}` });
    part.style.width = `${(100 * bytes) / memory.total}%`;
    part.style.background = `var(--${share})`;
    bar.append(part);
    const mark = el("i");
    mark.style.background = `var(--${share})`;
    key.append(el("li", {}, mark, SHARES[share], el("b", { text: Format.bytes(bytes) })));
  }
  return [bar, key];
}

function readings(pairs) {
  const known = pairs.filter(([, value]) => value != null);
  return el("dl", { class: "readings" }, ...known.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
}

const unit = (value, words, digits = 0) => (value == null ? null : `${value.toFixed(digits)} ${words}`);

function machineRows(machine) {
  const rows = machine.cards.map(({ card, memory, is_there }) => el("div", { class: "card-row" },
    el("h3", {}, card.name || `GPU ${card.index}`, el("small", { text: `GPU ${card.index}${is_there ? "" : " · gone"}${card.lost ? ` · ${card.lost}` : ""}` })),
    readings([
      ["core", unit(card.temperature_c, "°C")], ["memory", unit(card.memory_temperature_c, "°C")],
      ["power", card.power_w == null ? null : `${Math.round(card.power_w)}${card.power_limit_w ? ` of ${Math.round(card.power_limit_w)}` : ""} W`],
      ["busy", unit(card.busy_percent, "%")], ["fan", unit(card.fan_percent, "%")], ["clock", unit(card.sm_clock_mhz, "MHz")],
    ]), ...(memory ? segments(memory) : [])));
  const system = machine.system;
  if (system) {
    rows.push(el("div", { class: "card-row" }, el("h3", {}, "System", el("small", { text: system.cores ? `${system.cores} cores` : "" })),
      readings([
        ["CPU", unit(system.cpu_percent, "%")], ["waiting for CPU", unit(system.cpu_pressure_percent, "%", 1)],
        ["waiting for memory", unit(system.memory_pressure_percent, "%", 1)],
        ["disk free", system.disk_free_bytes == null ? null : Format.bytes(system.disk_free_bytes)],
      ]), ...(machine.memory ? segments(machine.memory) : [])));
  }
  return rows;
}

function eventList(events) {
  const list = el("ol", { class: "events" });
  for (const event of [...events].reverse().slice(0, 200)) {
    const time = el("time", { text: Format.time(event.time_s), datetime: new Date(event.time_s * 1000).toISOString() });
    list.append(el("li", { class: event.level }, time, el("span", { text: event.text })));
  }
  return events.length ? list : el("p", { class: "note", text: "nothing yet" });
}

// Series of temperature and power over time.
function heatSeries(cards, hasCpu) {
  const colors = ["second", "accent", "third", "fourth"];
  const series = cards.flatMap((card, index) => [
    { label: `${cards.length > 1 ? `${card.index}: ` : ""}core °C`, scale: "c", color: "second", width: 2, dash: index ? [6 * index, 3] : undefined, value: (v) => `${Math.round(v)} °C` },
    { label: `${cards.length > 1 ? `${card.index}: ` : ""}power W`, scale: "w", color: colors[1 + (index % 3)], width: 1.5, dash: index ? [6 * index, 3] : undefined, value: (v) => `${Math.round(v)} W` },
  ]);
  if (hasCpu) series.push({ label: "CPU %", scale: "p", color: "accent", width: 1.6, value: Format.percent });
  const axes = cards.length
    ? [{ scale: "c", value: (v) => `${Math.round(v)} °C` }, { scale: "w", side: 1, value: (v) => `${Math.round(v)} W`, fromZero: true, least: 10 }]
    : [{ scale: "p", value: Format.percent, fromZero: true, least: 100 }];
  return { series, axes, time: true };
}

// A view of the machine ---------------------------------------------------------------------------------------------------------

class MachinePage {
  constructor(main) {
    this.rows = el("div");
    this.heat = el("div", { class: "chart tall" });
    this.table = el("div", { class: "table" });
    main.replaceChildren(
      el("div", { class: "head" }, el("div", {}, el("h1", { text: "Machine" }), el("p", { class: "sub", text: "Current readings of GPUs and system, and all runs found." }))),
      el("div", { class: "grid" },
        panel("GPUs and memory", "half", null, this.rows),
        panel("Last minutes", "half", null, this.heat),
        panel("Runs", "", null, this.table)));
    this.showMachine();
    this.showRuns();
    this.start();
  }

  async start() {
    try {
      const { now, cards, cpu_percent } = await get("api/machine");
      const traces = cards.map((card, index) => ({ ...card, index: now?.cards[index]?.card.index ?? index }));
      if (!this.heat.isConnected) return;
      this.traces = { traces, cpu_percent };
      this.chart = new Chart(this.heat, heatSeries(traces, !traces.length));
      this.draw();
    } catch (error) { toast(error.message, true); }
  }

  draw() {
    if (!this.chart) return;
    const { traces, cpu_percent } = this.traces;
    const split = (trace) => [trace.map(([t]) => t), trace.map(([, v]) => v)];
    const tables = traces.flatMap((card) => [split(card.temperature_c), split(card.power_w)]);
    this.chart.set(traces.length ? tables : [split(cpu_percent)]);
  }

  showMachine() {
    if (!state.machine) return;
    this.rows.replaceChildren(...machineRows(state.machine));
    if (!this.chart) return;
    const { time_s, cards, system } = state.machine;
    const add = (trace, value) => {
      if (value != null && !(trace.length && trace[trace.length - 1][0] >= time_s)) trace.push([time_s, value]);
      if (trace.length > 600) trace.shift();
    };
    this.traces.traces.forEach((trace) => {
      const now = cards.find(({ card }) => card.index === trace.index)?.card;
      if (now) { add(trace.temperature_c, now.temperature_c); add(trace.power_w, now.power_w); }
    });
    add(this.traces.cpu_percent, system?.cpu_percent);
    this.draw();
  }

  showRuns() {
    const heads = ["Run", "State", "Step", "Loss", "Held out", "Tokens/s", "Memory", "Left"];
    const rows = state.runs.map((run) => el("tr", {},
      el("td", {}, el("a", { href: `#/run/${run.id}`, text: run.name })),
      el("td", {}, el("span", { class: dotOf(run) }), run.standing_words),
      el("td", { text: run.last_step ? `${Format.count(run.step)} of ${Format.count(run.last_step)}` : Format.count(run.step) }),
      el("td", { text: Format.number(run.loss) }), el("td", { text: Format.number(run.held_out) }),
      el("td", { text: run.tokens_per_s == null ? "–" : Format.short(run.tokens_per_s) }),
      el("td", { text: Format.bytes(run.memory_bytes ?? run.planned_bytes) }),
      el("td", { text: run.standing === "running" ? Format.duration(run.seconds_left) : "–" })));
    this.table.replaceChildren(rows.length
      ? el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...rows))
      : el("p", { class: "note", text: "No runs yet. `plimsoll train` starts one, and it appears here." }));
  }

  showRun() {}

  destroy() { this.chart?.destroy(); }
}

// A view of a run ---------------------------------------------------------------------------------------------------------------

const settings = { log: false, smooth: 0.6 };

class RunPage {
  constructor(main, id) {
    this.id = id;
    this.main = main;
    this.curves = {};
    this.newest = null;
    main.replaceChildren(el("p", { class: "note", text: "loading…" }));
  }

  build(run) {
    const field = {};
    for (const name of ["loss", "held", "speed", "memory", "rate", "left"]) {
      field[name] = [el("dd"), el("small")];
    }
    const figure = (label, name) => el("div", {}, el("dt", { text: label }), ...field[name]);
    this.field = field;
    this.title = el("h1");
    this.sub = el("p", { class: "sub" });
    this.actions = el("div", { class: "actions" });
    this.bar = el("i");
    this.barWords = [el("span"), el("span")];
    this.progress = el("div", { class: "progress" }, el("div", { class: "bar" }, this.bar), el("p", {}, ...this.barWords));
    const chart = (tall) => el("div", { class: tall ? "chart tall" : "chart" });
    const places = { loss: chart(true), rate: chart(), speed: chart(), norm: chart(), memory: chart(), heat: chart() };
    const log = (on) => el("button", { type: "button", "aria-pressed": String(settings.log === on), text: on ? "log" : "linear", onclick: () => this.setLog(on) });
    this.logs = [log(false), log(true)];
    const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: settings.smooth, "aria-label": "Smoothing" });
    smooth.addEventListener("input", () => { settings.smooth = Number(smooth.value); this.drawCurves(); });
    const tools = el("div", { class: "tools" }, ...this.logs, el("label", {}, "smooth", smooth));
    this.mapCanvas = el("canvas", { role: "img", "aria-label": "Memory map of the plan" });
    this.mapLive = el("div", { class: "live" });
    this.heatNote = el("small");
    this.mapNote = el("small");
    this.mapPanel = panel("Memory map of the plan", "", this.mapNote, el("div", { class: "map" }, this.mapCanvas), el("ul", { class: "key" }), this.mapLive);
    this.cards = el("div");
    this.events = el("div");
    this.more = el("div", { class: "grid loose" });
    this.problems = el("div");
    this.main.replaceChildren(
      el("div", { class: "head" }, el("div", {}, this.title, this.sub), this.actions), this.problems, this.progress,
      el("dl", { class: "figures" }, figure("Loss", "loss"), figure("Held-out loss", "held"), figure("Tokens per second", "speed"),
        figure("Memory", "memory"), figure("Learning rate", "rate"), figure("Time left", "left")),
      el("div", { class: "grid" },
        panel("Loss", "wide", tools, places.loss),
        panel("Events", "third", null, this.events), this.mapPanel,
        panel("Learning rate", "third", null, places.rate), panel("Tokens per second", "third", null, places.speed),
        panel("Gradient norm", "third", null, places.norm),
        panel("Heat and power", "half", this.heatNote, places.heat), panel("Memory held", "half", null, places.memory),
        panel("Machine", "", null, this.cards)),
      this.more);
    const one = (label, color, axis = {}) => ({
      series: [
        { label, scale: "y", color, width: 1, faint: true, value: axis.value, show: true },
        { label: "smoothed", scale: "y", color, width: 2, value: axis.value },
      ],
      axes: [{ scale: "y", ...axis }],
    });
    this.charts = {
      loss: new Chart(places.loss, {
        series: [
          { label: "loss", scale: "y", color: "accent", width: 1, faint: true },
          { label: "smoothed", scale: "y", color: "accent", width: 2.2 },
          { label: "held out", scale: "y", color: "second", width: 2, points: true },
          { label: "averaged", scale: "y", color: "third", width: 2, points: true, dash: [5, 4] },
        ],
        axes: [{ scale: "y", log: true }],
      }),
      rate: new Chart(places.rate, { series: [{ label: "rate", scale: "y", color: "third", width: 2 }], axes: [{ scale: "y", value: (v) => (v === 0 ? "0" : v.toExponential(1)), fromZero: true }] }),
      speed: new Chart(places.speed, one("tokens/s", "accent", { fromZero: true, value: Format.short })),
      norm: new Chart(places.norm, one("norm", "fourth", { fromZero: true })),
      memory: new Chart(places.memory, {
        series: [{ label: "held", scale: "y", color: "accent", width: 2, value: Format.bytes }, { label: "planned", scale: "y", color: "quiet", width: 1.5, dash: [6, 4], value: Format.bytes }],
        axes: [{ scale: "y", value: Format.bytes, fromZero: true, size: 66 }],
      }),
    };
    this.places = places;
    this.setLog(settings.log);
    this.loadHeat(run);
    this.loadMap();
    this.showMachine();
  }

  setLog(on) {
    settings.log = on;
    this.logs.forEach((button, index) => button.setAttribute("aria-pressed", String(on === (index === 1))));
    this.charts.loss.setLog(on);
    this.drawCurves();
  }

  async loadHeat() {
    try {
      const samples = await get(`api/runs/${this.id}/samples`);
      if (!this.places.heat.isConnected) return;
      const has = samples.cards.some((card) => card.temperature_c.some((v) => v != null) || card.power_w.some((v) => v != null));
      const cards = has ? samples.cards : [];
      this.heatNote.textContent = has ? "" : "no readings of a GPU; CPU instead";
      const key = cards.map((card) => card.index).join();
      if (!this.charts.heat || this.heatKey !== key) {
        this.charts.heat?.destroy();
        this.places.heat.replaceChildren();
        this.charts.heat = new Chart(this.places.heat, heatSeries(cards, !cards.length));
        this.charts.heat.nothing = "no samples of this run";
        this.heatKey = key;
      }
      const tables = cards.flatMap((card) => [[samples.time_s, card.temperature_c], [samples.time_s, card.power_w]]);
      this.charts.heat.set(cards.length ? tables : [[samples.time_s, samples.cpu_percent]]);
    } catch { /* The run has no samples. */ }
    this.heatAt = Date.now();
  }

  async loadMap() {
    try {
      const map = await get(`api/runs/${this.id}/plan`);
      if (!this.mapCanvas.isConnected) return;
      this.map?.destroy();
      this.map = new MemoryPlan(this.mapCanvas, this.mapLive, map);
      const key = this.mapPanel.querySelector(".key");
      key.replaceChildren(...map.roles.map((role, index) => {
        const mark = el("i");
        mark.style.background = `var(--${ROLE_COLORS[index]})`;
        return el("li", {}, mark, role);
      }));
      const times = map.accumulation > 1 ? `, ${map.accumulation} times per step` : "";
      this.mapNote.textContent = `${map.program}: a micro-batch of ${map.micro_batch}${times} · ${map.moments - 2} operations from left to right · peak ${Format.bytes(map.peak_bytes)} of ${Format.bytes(map.budget_bytes)}`;
      this.mapPanel.hidden = false;
      this.tick();
    } catch { this.mapPanel.hidden = true; }
  }

  // Marks the current moment on the map, estimated from the time since the last step.
  tick() {
    const { run, map } = this;
    if (!run || !map) return;
    const inMoments = (part) => Math.floor(Math.max(0, Math.min(0.999, part)) * map.map.moments);
    if (run.standing !== "running") map.setNow({ moment: map.map.fullest, words: "Not running; at the peak" });
    else if (run.is_paused) map.setNow({ moment: 0, words: "Now, paused between micro-batches" });
    else if (run.step_ms > 1500 && run.last_s) {
      const part = ((Date.now() / 1000 - run.last_s) * 1000) / run.step_ms;
      map.setNow({ moment: inMoments((part * map.map.accumulation) % 1), words: "Now, estimated from the time of steps" });
    } else map.setNow({ moment: map.map.fullest, words: "Steps take less than two seconds; at the peak of each" });
  }

  showRun({ run, curves }) {
    const planChanged = this.run && (this.run.planned_bytes !== run.planned_bytes || this.run.sessions !== run.sessions);
    for (const [name, { from, points }] of Object.entries(curves)) {
      const known = this.curves[name] ?? [];
      this.curves[name] = [...known.slice(0, from), ...points];
    }
    this.run = run;
    if (!this.title) this.build(run);
    else if (planChanged) this.loadMap();
    document.title = `${run.name} · Plimsoll`;
    this.title.textContent = run.name;
    const parts = [run.program, run.model, run.parameters ? `${Format.short(run.parameters)} parameters` : null, run.device, run.process ? `process ${run.process}` : null, run.folder];
    this.sub.replaceChildren(el("span", { class: "state" }, el("span", { class: dotOf(run) }), run.standing_words), ` · ${parts.filter(Boolean).join(" · ")}`);
    this.showActions(run);
    this.problems.replaceChildren(...run.problems.map((text) => el("p", { class: "problem", text })));
    const put = (name, text, note = "") => { this.field[name][0].textContent = text; this.field[name][1].textContent = note; };
    put("loss", Format.number(run.loss), run.step ? `step ${Format.count(run.step)}` : "");
    const held = this.curves.held_out?.at(-1);
    put("held", Format.number(run.held_out), held ? `after step ${Format.count(held[0])}` : "");
    put("speed", run.tokens_per_s == null ? "–" : Format.count(run.tokens_per_s), run.step_ms == null ? "" : `${Format.number(run.step_ms, 3)} ms per step`);
    put("memory", Format.bytes(run.memory_bytes), run.planned_bytes ? `planned ${Format.bytes(run.planned_bytes)}` : "");
    put("rate", run.learning_rate == null ? "–" : run.learning_rate.toExponential(2), run.grad_norm == null ? "" : `norm ${Format.number(run.grad_norm, 3)}`);
    put("left", run.standing === "running" ? Format.duration(run.seconds_left) : "–", `${Format.duration(run.seconds)} so far`);
    this.progress.hidden = run.done == null;
    this.bar.style.width = `${100 * (run.done ?? 0)}%`;
    this.barWords[0].textContent = run.last_step ? `step ${Format.count(run.step)} of ${Format.count(run.last_step)}` : "";
    this.barWords[1].textContent = run.done == null ? "" : `${(100 * run.done).toFixed(run.done < 0.1 ? 1 : 0)} %`;
    this.showEvents(run.events);
    this.showMore(run);
    this.drawCurves();
    this.tick();
    // A long run has many samples, and its chart changes little: load them rarely.
    const every = Math.max(15, run.seconds / 200) * 1000;
    if (run.standing === "running" && Date.now() - (this.heatAt ?? 0) > every) this.loadHeat();
  }

  showActions(run) {
    const key = `${run.actions.join()} ${run.standing}`;
    if (key === this.actionsKey) return;
    this.actionsKey = key;
    const buttons = run.actions.map((action) => el("button", {
      type: "button", class: BUTTONS[action].danger ? "danger" : action === "resume" ? "main" : "", text: BUTTONS[action].label,
      "data-action": action, onclick: () => press(this.run, action),
    }));
    const report = run.kind === "train" ? el("a", { class: "button", href: `api/runs/${run.id}/report`, target: "_blank", rel: "noopener", text: "Report ↗" }) : null;
    this.actions.replaceChildren(...buttons, ...(report ? [report] : []));
  }

  showEvents(events) {
    const newest = events.at(-1);
    const key = newest ? `${newest.time_s} ${events.length} ${newest.text}` : "";
    if (key === this.eventsKey) return;
    if (this.eventsKey != null) {
      const later = events.filter((event) => event.time_s > this.newest && event.level !== "info");
      later.forEach((event) => toast(event.text, event.level === "error"));
    }
    this.newest = newest?.time_s ?? 0;
    this.eventsKey = key;
    this.events.replaceChildren(eventList(events));
  }

  showMore(run) {
    const key = JSON.stringify([run.settings, run.sample, run.checkpoints]);
    if (key === this.moreKey) return;
    this.moreKey = key;
    const parts = [];
    if (run.checkpoints.length) {
      const rows = run.checkpoints.map((saved) => el("tr", {}, el("td", { text: `step ${Format.count(saved.step)}` }), el("td", { text: Format.bytes(saved.bytes) }),
        el("td", { text: `${(saved.milliseconds / 1000).toFixed(2)} s` }), el("td", { text: saved.is_there ? "kept" : "deleted since" })));
      parts.push(panel("Checkpoints", "half", null, el("div", { class: "table" }, el("table", {}, el("tbody", {}, ...rows)))));
    }
    if (run.sample) parts.push(panel("Sample", "half", null, el("pre", { class: "sample" }, el("b", { text: run.sample.prompt }), run.sample.text)));
    if (run.settings) parts.push(el("section", { class: "panel half" }, el("details", {}, el("summary", { text: "Settings" }), el("pre", { text: run.settings }))));
    this.more.replaceChildren(...parts);
  }

  drawCurves() {
    if (!this.charts || !this.run) return;
    const of = (name) => this.curves[name] ?? [];
    const xy = (name) => [of(name).map(([step]) => step), of(name).map(([, mean]) => mean)];
    const both = (name, weight) => { const [x, y] = xy(name); return [x, y, smoothed(y, weight)]; };
    const { charts } = this;
    charts.loss.set([both("loss", settings.smooth), xy("held_out"), xy("averaged")]);
    charts.rate.set([xy("learning_rate")]);
    charts.speed.set([both("tokens_per_s", 0.8)]);
    charts.norm.set([both("grad_norm", 0.8)]);
    const [x, y] = xy("memory_bytes");
    charts.memory.set([[x, y, x.map(() => this.run.planned_bytes)]]);
  }

  showMachine() {
    if (this.cards && state.machine) this.cards.replaceChildren(...machineRows(state.machine));
    this.tick();
  }

  showRuns() {}

  destroy() {
    Object.values(this.charts ?? {}).forEach((chart) => chart.destroy());
    this.map?.destroy();
  }
}

// Navigation and events ---------------------------------------------------------------------------------------------------------

function show() {
  const id = location.hash.match(/^#\/run\/([0-9a-f]{1,64})$/)?.[1] ?? null;
  if (state.view && id === state.shown) return;
  state.view?.destroy();
  state.shown = id;
  document.title = "Plimsoll";
  state.view = id ? new RunPage($("main"), id) : new MachinePage($("main"));
  showList();
  listen();
}

function showLink(name, words) {
  $("link").className = `link ${name}`;
  $("link").textContent = words;
}

function listen() {
  state.source?.close();
  clearTimeout(state.retry);
  const query = state.shown ? `?run=${state.shown}` : "";
  const source = new EventSource(`api/events${query}`);
  state.source = source;
  const on = (name, take) => source.addEventListener(name, (event) => { showLink("live", "live"); take(JSON.parse(event.data)); });
  source.onopen = () => showLink("live", "live");
  on("runs", ({ runs, more }) => {
    Object.assign(state, { runs, more });
    showList();
    state.view.showRuns();
    if (state.shown && !runs.some((run) => run.id === state.shown) && !state.view.run) {
      $("main").replaceChildren(el("p", { class: "note", text: "This run no longer exists." }));
    }
  });
  on("run", (data) => { if (data.run.id === state.shown) state.view.showRun(data); });
  on("machine", (machine) => {
    state.machine = machine;
    state.view.showMachine();
    const small = $("runs").querySelector(".run small");
    if (small) small.textContent = machineWords();
  });
  source.onerror = () => {
    showLink("lost", "no connection, retrying…");
    // After a refusal the browser does not reconnect by itself.
    if (source.readyState === EventSource.CLOSED && state.source === source) state.retry = setTimeout(() => again(source), 2000);
  };
}

// Reconnects as soon as the server accepts this page's cookie.
async function again(source) {
  const answer = await fetch("api/runs").catch(() => null);
  if (state.source !== source) return;
  if (answer?.ok) return listen();
  showLink("lost", answer?.status === 401 ? "the token has changed: open the link that `plimsoll serve` prints" : "no connection, retrying…");
  state.retry = setTimeout(() => again(source), answer?.status === 401 ? 10000 : 2000);
}

$("theme").addEventListener("click", () => {
  Theme.next();
  $("theme").textContent = Theme.name ? `Theme: ${Theme.name}` : "Theme";
});
if (Theme.name) $("theme").textContent = `Theme: ${Theme.name}`;
Theme.onChange(() => state.runs.length && showList());
addEventListener("hashchange", show);
addEventListener("pagehide", () => state.source?.close());
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
setInterval(() => state.view?.tick?.(), 250);
show();
