// A map of the members of an array: a cell for each, by two values of the sweep if it has them, in the colour of its
// state or of a metric.
import { html, useState } from "../lib.js";
import { jobLink } from "../route.js";
import { figure } from "../words.js";

/** @typedef {import("../job-types.js").MemberRow} MemberRow */
/** @typedef {import("../job-types.js").MemberTable} MemberTable */
/** @typedef {Event & {currentTarget: HTMLSelectElement}} Changed */

/** Most values of the sweep along one side of the map. */
const MAX_VALUES = 60;

/** A member has no state for a moment after its end. @param {string | null} state */
export const stateWords = (state) => state ?? "just ended";

/** The rows with the least and the largest value of a metric. @param {MemberRow[]} rows @param {string} metric */
function endsOf(rows, metric) {
  const known = rows.filter((each) => metric in each.metrics).sort((one, other) => one.metrics[metric] - other.metrics[metric]);
  return known.length ? { least: known[0], most: known[known.length - 1] } : null;
}

/** @typedef {{id: string, axes: string[], metric: string, ends: ReturnType<typeof endsOf>}} Scale */

/** @param {{row: MemberRow, scale: Scale, hasText: boolean}} props */
function Cell({ row, scale: { id, axes, metric, ends }, hasText }) {
  const value = metric && metric in row.metrics ? row.metrics[metric] : null;
  const values = axes.map((axis, place) => `${axis}=${row.values[place]}`).join(" ");
  const words = [`${id}_${row.index} ${stateWords(row.state)}`, values, value === null ? "" : `${metric} ${figure(value)}`].filter(Boolean).join(", ");
  const span = ends ? ends.most.metrics[metric] - ends.least.metrics[metric] : 0;
  const share = value === null || !ends ? null : span ? (value - ends.least.metrics[metric]) / span : 1;
  const hasFailed = row.state === "failed" || row.state === "lost"; // without a value it stays marked as that
  const kind = !metric || (value === null && hasFailed) ? (row.state ?? "gone") : value === null ? "unmeasured" : "measured";
  return html`<a class=${`cell ${kind}`} style=${share === null ? undefined : { "--share": String(share) }}
    href=${jobLink(`${id}_${row.index}`)} title=${words} aria-label=${words}>${hasText && value !== null ? figure(value) : ""}</a>`;
}

/** @param {{label: string, value: string, choices: [string, string][], onChoose: (value: string) => void}} props */
const Choice = ({ label, value, choices, onChoose }) => html`
  <label class="choice">${label}
    <select value=${value} onChange=${(/** @type {Changed} */ event) => onChoose(event.currentTarget.value)}>${choices.map(([each, words]) => html`<option key=${each} value=${each}>${words}</option>`)}</select>
  </label>`;

/** @param {{rows: MemberRow[], scale: Scale, down: number, across: number}} props the places of the two values */
function Grid({ rows, scale, down, across }) {
  /** @param {number} place */
  const valuesOf = (place) => [...new Set([...rows].sort((one, other) => one.index - other.index).map((each) => each.values[place]))];
  const hasText = scale.axes.length === 2;
  return html`
    <div class="wide heat" tabindex="0" role="region" aria-label="Map of the members, scrollable">
      <table aria-label=${`Members by ${scale.axes[down]} and ${scale.axes[across]}`}>
        <thead><tr><td><bdi>${scale.axes[down]}</bdi> <span aria-hidden="true">↓</span> <bdi>${scale.axes[across]}</bdi> <span aria-hidden="true">→</span></td>${valuesOf(across).map((each) => html`<th key=${each} scope="col"><bdi>${each}</bdi></th>`)}</tr></thead>
        <tbody>${valuesOf(down).map((one) => html`<tr key=${one}><th scope="row"><bdi>${one}</bdi></th>
          ${valuesOf(across).map((other) => html`<td key=${other}><div class=${hasText ? "one" : "some"}>${rows.filter((row) => row.values[down] === one && row.values[across] === other).map((row) => html`<${Cell} key=${row.index} row=${row} scale=${scale} hasText=${hasText} />`)}</div></td>`)}</tr>`)}</tbody>
      </table>
    </div>
  `;
}

/** @param {{id: string, table: MemberTable}} props */
export function MemberMap({ id, table: { rows, axes, metrics } }) {
  const [wanted, setWanted] = useState("");
  const [sides, setSides] = useState(/** @type {[string, string] | null} */ (null));
  const metric = metrics.includes(wanted) ? wanted : "";
  const ends = metric ? endsOf(rows, metric) : null;
  const scale = { id, axes, metric, ends };
  const [down, across] = (sides ?? axes.slice(0, 2)).map((each) => axes.indexOf(each));
  const isGrid = axes.length > 1 && [down, across].every((place) => new Set(rows.map((each) => each.values[place])).size <= MAX_VALUES);
  /** Choose the value of a side; the other side takes its value if they would be the same. @param {0 | 1} side */
  const turned = (side) => (/** @type {string} */ name) => {
    const now = [axes[down], axes[across]];
    const next = /** @type {[string, string]} */ ([...now]);
    next[side] = name;
    if (next[0] === next[1]) next[1 - side] = now[side];
    setSides(next);
  };
  /** @param {string[]} names @returns {[string, string][]} */
  const named = (names) => names.map((each) => [each, each]);
  /** @param {MemberRow} row */
  const linked = (row) => html`<a href=${jobLink(`${id}_${row.index}`)}>${id}_${row.index}</a>`;
  return html`
    <div class="map-tools">
      ${metrics.length ? html`<${Choice} label="Colour" value=${metric} choices=${[["", "state"], ...named(metrics)]} onChoose=${setWanted} />` : null}
      ${isGrid && axes.length > 2 ? html`<${Choice} label="Down" value=${axes[down]} choices=${named(axes)} onChoose=${turned(0)} /><${Choice} label="Across" value=${axes[across]} choices=${named(axes)} onChoose=${turned(1)} />` : null}
      ${ends ? html`<span class="scale">${figure(ends.least.metrics[metric])} <small>${linked(ends.least)}</small> <i aria-hidden="true"></i> ${figure(ends.most.metrics[metric])} <small>${linked(ends.most)}</small></span>` : null}
    </div>
    ${isGrid ? html`<${Grid} rows=${rows} scale=${scale} down=${down} across=${across} />`
    : html`<ul class="cells">${rows.map((each) => html`<li key=${each.index}><${Cell} row=${each} scale=${scale} hasText=${false} /></li>`)}</ul>`}
  `;
}
