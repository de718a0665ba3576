// The time slider, and questions about nodes. All facts are in the page; this counts and shows them.
"use strict";
const hhmm = (minute) => `${String(Math.floor(minute / 60)).padStart(2, "0")}:${String(minute % 60).padStart(2, "0")}`;
const line = (answer, ...parts) => {
  const paragraph = document.createElement("p");
  for (const part of parts) paragraph.append(part);
  answer.append(paragraph);
};
const code = (text) => Object.assign(document.createElement("code"), { textContent: text });
const plain = (name) => name.toLowerCase().replace(/[\s_-]/g, "");
const numberOf = (name) => Number(name.split(".")[0].match(/(\d+)\D*$/)?.[1]);
const NEAREST = 3; // names to offer for one that is not here

// The number of characters to insert, delete or replace.
function distance(one, other) {
  let row = [...other, ""].map((_, place) => place);
  for (const [above, letter] of [...one].entries()) {
    const next = [above + 1];
    for (const [place, its] of [...other].entries()) {
      next.push(Math.min(next[place] + 1, row[place + 1] + 1, row[place] + (letter !== its)));
    }
    row = next;
  }
  return row.at(-1);
}

function follow(root) {
  const facts = JSON.parse(root.querySelector("script").textContent);
  const [search, slider] = root.querySelectorAll("input");
  const [answer, clock] = [root.querySelector(".answer"), root.querySelector("output")];
  const buttons = [...root.querySelectorAll("button")];
  let kept = { title: "", nodes: [], failing: [] }; // what was searched or clicked; the nodes that stop it
  let chosen = kept; // that, or what the pointer is on

  const atTime = (starts) => {
    const past = starts.filter(([begin]) => begin <= Number(slider.value));
    return (past.length ? past : starts).at(-1)[1];
  };
  const unitsOn = () => new Set(atTime(facts.states));
  const unitsOf = (nodes) => [...new Set(nodes.map((node) => facts.nodes[node].unit))].filter((unit) => unit >= 0);
  const when = () => (facts.states.length > 1 ? ` at ${hhmm(Number(slider.value))}` : "");
  const namesOf = (units) => units.map((unit) => facts.units[unit].short).join(", ");
  // Units in order, those of one phase as `prefill-0 to 10` where no number is left out.
  function runs(units) {
    const phases = [...new Set(units.map((unit) => facts.units[unit].phase))];
    return phases.map((phase) => {
      const names = units.filter((unit) => facts.units[unit].phase === phase).map((unit) => facts.units[unit].short);
      const numbers = names.map((name) => Number(name.match(/\d+$/)));
      const isRun = numbers.length > 2 && numbers.every((number, place) => number === numbers[0] + place);
      return `${names.length} ${phase} (${isRun ? `${names[0]} to ${numbers.at(-1)}` : names.join(", ")})`;
    }).join(" and ");
  }

  // When a unit that is off is due again: that day, or the next.
  function until(unit) {
    const starts = facts.states.filter(([, units]) => units.includes(unit)).map(([begin]) => begin);
    const next = starts.find((begin) => begin > Number(slider.value)) ?? starts[0];
    return next === undefined ? "" : ` until ${hhmm(next)}`;
  }

  // What traffic asks of the units that are left, as a share of the most that they make.
  function tellRest(phase, all, left) {
    if (!left) return `, and so all of ${phase}`;
    const load = phase in facts.loads ? atTime(facts.loads[phase]) : null;
    if (load === null) return "";
    const rest = load * all / left;
    const beyond = rest > 1 ? ", so some of it waits or is refused" : "";
    return ` (traffic asks the other ${left} for ${(100 * rest).toFixed(1)}% of the most that they make${beyond})`;
  }
  function tellLoss(title, nodes) {
    const on = unitsOn();
    const lost = unitsOf(nodes).filter((unit) => on.has(unit));
    const off = unitsOf(nodes).filter((unit) => !on.has(unit));
    const phases = [...new Set(lost.map((unit) => facts.units[unit].phase))];
    const shares = phases.map((phase) => {
      const inPhase = (unit) => facts.units[unit].phase === phase;
      const [stop, all] = [lost.filter(inPhase).length, [...on].filter(inPhase).length];
      return `${stop} of ${all} ${phase} units${tellRest(phase, all, all - stop)}`;
    });
    const offs = off.map((unit) => namesOf([unit]) + until(unit)).join(", ");
    const stops = lost.length ? `stops ${namesOf(lost)}: ${shares.join(" and ")}` : "stops no unit that is on";
    line(answer, `${title} lost${when()}: ${stops}${off.length ? `; off: ${offs}` : ""}.`);
  }
  function tellUnit(unit) {
    const { name, short, phase, nodes, leader } = facts.units[unit];
    line(answer, `${short} needs all of its nodes: ${nodes}. ${leader} is its leader, with rank 0. ${facts.recovery[phase]}`);
    line(answer, "Its pods: ", code(`kubectl -n ${facts.namespace} get pods -l ${facts.label}=${name} -o wide`));
  }
  // What to do about a node that is dead, as docs/operating.md says it.
  function tellWayBack(name, unit) {
    if (facts.healed.includes(facts.units[unit].phase)) {
      line(answer, `If ${name} is dead, do nothing: the controller moves the unit to a spare.`);
    } else line(answer, `If ${name} is dead, bring it back, or let its pods go: `, code(`kubectl delete node ${name}`));
  }
  function tellCall(failing) {
    const known = failing.map((node) => facts.nodes[node]).filter(({ unit, spare }) => unit >= 0 || spare);
    const fails = known.map(({ name }) => ` --fail ${name}@${hhmm(Number(slider.value))}`);
    line(answer, "The day with this loss: ", code(`tidemill simulate SPEC${fails.join("")}`));
  }
  function tellNode(node) {
    const { name, unit, why, places } = facts.nodes[node];
    line(answer, `${name}: ${facts.units[unit]?.name ?? (why || "idle")}`);
    tellLoss(name, [node]);
    for (const [kind, place] of Object.entries(places)) {
      if (place) tellLoss(`${place}, its ${kind},`, inPlace(kind, place));
    }
  }
  const inPlace = (kind, place) => facts.nodes.flatMap((fact, node) => (fact.places[kind] === place ? [node] : []));

  function show() {
    const on = unitsOn();
    const units = new Set(unitsOf(chosen.nodes));
    for (const button of buttons) {
      const { unit } = facts.nodes[button.dataset.node];
      button.classList.toggle("off", unit >= 0 && !on.has(unit));
      button.classList.toggle("mate", units.has(unit));
      button.classList.toggle("lost", chosen.nodes.includes(Number(button.dataset.node)));
    }
    answer.replaceChildren();
    if (chosen.nodes.length === 1) tellNode(chosen.nodes[0]);
    else if (chosen.nodes.length) tellLoss(chosen.title, chosen.nodes);
    else if (chosen.title) line(answer, `Nothing here is called ${chosen.title}; nearest: ${nearest(chosen.title)}.`);
    else {
      const inUse = facts.nodes.filter(({ unit }) => on.has(unit)).length;
      line(answer, `${on.size} of ${facts.units.length} units are on${when()}, on ${inUse} of ${facts.nodes.length} nodes: ${runs([...on])}.`);
      line(answer, "Point at a node, or find one by name or number, to see what fails with it.");
    }
    if (units.size === 1) tellUnit([...units][0]);
    if (units.size && chosen.nodes.length === 1) tellWayBack(facts.nodes[chosen.nodes[0]].name, [...units][0]);
    if (units.size) tellCall(chosen.failing);
    clock.textContent = hhmm(Number(slider.value));
    document.documentElement.style.setProperty("--now", slider.value / 14.4);
  }
  function choose(choice) {
    chosen = choice;
    show();
  }
  function keep(choice) {
    kept = choice;
    choose(kept);
  }
  // Each name once, with what it chooses; a node's name goes before a unit's, then a place's, then a mark.
  const named = new Map();
  const add = (name, title, nodes, failing = nodes) => {
    if (name && !named.has(name)) named.set(name, { title, nodes, failing });
  };
  facts.nodes.forEach(({ name }, node) => add(name, name, [node]));
  const addUnits = (...keys) => facts.units.forEach((fact, unit) => {
    const nodes = facts.nodes.flatMap((each, node) => (each.unit === unit ? [node] : []));
    for (const key of keys) add(fact[key], fact.short, nodes, nodes.slice(0, 1)); // one lost node stops the unit
  });
  addUnits("name", "short");
  for (const kind of ["rack", "leaf switch"]) {
    for (const place of new Set(facts.nodes.map(({ places }) => places[kind]))) add(place, place, inPlace(kind, place));
  }
  addUnits("mark");
  // A name, however it is written; or a number: of a node, else of a rack or a unit.
  function find(text) {
    const same = (name) => plain(name) === plain(text) || (/^\d+$/.test(text) && numberOf(name) === Number(text));
    const every = [...named.keys()].filter(same);
    const nodes = every.filter((name) => facts.nodes.some((node) => node.name === name));
    const alike = nodes.length ? nodes : every;
    return named.get(text) ?? (alike.length === 1 ? named.get(alike[0]) : { title: text, nodes: [], failing: [] });
  }
  function nearest(text) {
    const ranked = [...named.keys()].map((name) => [distance(plain(name), plain(text)), name]);
    return ranked.sort(([one], [other]) => one - other).slice(0, NEAREST).map(([, name]) => name).join(", ");
  }

  buttons.forEach((button, index) => {
    const node = Number(button.dataset.node);
    const choice = { title: "", nodes: [node], failing: [node] };
    button.tabIndex = index ? -1 : 0;
    button.addEventListener("pointerenter", () => choose(choice));
    button.addEventListener("pointerleave", () => choose(kept));
    for (const event of ["focus", "click"]) button.addEventListener(event, () => keep(choice));
    button.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
      const next = step && buttons[index + step];
      if (!next) return;
      button.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  });
  search.addEventListener("input", () => keep(find(search.value.trim())));
  slider.addEventListener("input", () => document.querySelectorAll(".nodes").forEach((each) => {
    each.querySelector("input[type=range]").value = slider.value;
    each.dispatchEvent(new Event("time"));
  }));
  root.addEventListener("time", show);
  show();
}
document.querySelectorAll(".nodes").forEach(follow);
