// The time slider, and questions about nodes. All facts are in the page; this counts and shows them.
"use strict";
const hhmm = (minute) => `${String(Math.floor(minute / 60)).padStart(2, "0")}:${String(minute % 60).padStart(2, "0")}`;
const line = (answer, ...parts) => {
  const paragraph = document.createElement("p");
  for (const part of parts) paragraph.append(part);
  answer.append(paragraph);
};
const code = (text) => Object.assign(document.createElement("code"), { textContent: text });

function follow(root) {
  const facts = JSON.parse(root.querySelector("script").textContent);
  const [search, slider] = root.querySelectorAll("input");
  const [answer, clock] = [root.querySelector(".answer"), root.querySelector("output")];
  const buttons = [...root.querySelectorAll("button")];
  let kept = { title: "", nodes: [] }; // what was searched or clicked
  let chosen = kept; // that, or what the pointer is on

  const unitsOn = () => {
    const minute = Number(slider.value);
    const past = facts.states.filter(([begin]) => begin <= minute);
    return new Set((past.length ? past : facts.states).at(-1)[1]);
  };
  const unitsOf = (nodes) => [...new Set(nodes.map((node) => facts.nodes[node].unit))].filter((unit) => unit >= 0);
  const when = () => (facts.states.length > 1 ? ` at ${hhmm(Number(slider.value))}` : "");
  const namesOf = (units) => units.map((unit) => facts.units[unit].short).join(", ");

  function tellLoss(title, nodes) {
    const on = unitsOn();
    const lost = unitsOf(nodes).filter((unit) => on.has(unit));
    const off = unitsOf(nodes).filter((unit) => !on.has(unit));
    const phases = [...new Set(lost.map((unit) => facts.units[unit].phase))];
    const shares = phases.map((phase) => {
      const inPhase = (unit) => facts.units[unit].phase === phase;
      const [stop, all] = [lost.filter(inPhase).length, [...on].filter(inPhase).length];
      return `${stop} of ${all} ${phase} units (${(100 * stop / all).toFixed(1)}% of what ${phase} makes)`;
    });
    const stops = lost.length ? `stops ${namesOf(lost)}: ${shares.join(" and ")}` : "stops no unit that is on";
    line(answer, `${title} lost${when()}: ${stops}${off.length ? `; ${namesOf(off)} off` : ""}.`);
  }
  function tellUnit(unit, node) {
    const { name, short, phase } = facts.units[unit];
    line(answer, `${short} needs all of its nodes. ${facts.recovery[phase]}`);
    line(answer, "Its pods: ", code(`kubectl -n ${facts.namespace} get pods -l ${facts.label}=${name} -o wide`));
    line(answer, "The day without it: ", code(`tidemill simulate SPEC --fail ${facts.nodes[node].name}@${hhmm(Number(slider.value))}`));
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
    else if (chosen.title) line(answer, `Nothing here is called ${chosen.title}.`);
    else {
      const inUse = facts.nodes.filter(({ unit }) => on.has(unit)).length;
      line(answer, `${on.size} of ${facts.units.length} units are on${when()}, on ${inUse} of ${facts.nodes.length} nodes.`);
      line(answer, "Point at a node, or find one by name, to see what fails with it.");
    }
    if (units.size === 1) tellUnit([...units][0], chosen.nodes[0]);
    clock.textContent = hhmm(Number(slider.value));
    document.documentElement.style.setProperty("--now", slider.value / 14.4);
  }
  function choose(choice) {
    chosen = choice;
    show();
  }
  function keep(title, nodes) {
    kept = { title, nodes };
    choose(kept);
  }
  function find(text) {
    const exact = (kind) => (fact) => fact.places[kind] === text;
    const tests = [(fact) => fact.name === text, (fact) => [facts.units[fact.unit]?.name, facts.units[fact.unit]?.short].includes(text)];
    for (const test of [...tests, ...["rack", "leaf switch", "power feed"].map(exact)]) {
      const nodes = facts.nodes.flatMap((fact, node) => (test(fact) ? [node] : []));
      if (nodes.length) return nodes;
    }
    return [];
  }

  buttons.forEach((button, index) => {
    const nodes = [Number(button.dataset.node)];
    button.tabIndex = index ? -1 : 0;
    button.addEventListener("pointerenter", () => choose({ title: "", nodes }));
    button.addEventListener("pointerleave", () => choose(kept));
    for (const event of ["focus", "click"]) button.addEventListener(event, () => keep("", nodes));
    button.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
      const next = step && buttons[index + step];
      if (!next) return;
      button.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  });
  search.addEventListener("input", () => keep(search.value.trim(), find(search.value.trim())));
  slider.addEventListener("input", () => document.querySelectorAll(".nodes").forEach((each) => {
    each.querySelector("input[type=range]").value = slider.value;
    each.dispatchEvent(new Event("time"));
  }));
  root.addEventListener("time", show);
  show();
}
document.querySelectorAll(".nodes").forEach(follow);
