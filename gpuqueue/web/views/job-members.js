// The members of an array: a cell for each by its state, and a table with the values of their sweep.
import { address, usePolled } from "../api.js";
import { isEnd } from "../job-states.js";
import { html, useMemo, useState } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { Trouble } from "../parts/trouble.js";
import { jobLink } from "../route.js";
import { duration, size } from "../words.js";

const EVERY_MS = 2000;
const ENDED_MS = 15000;
/** Members that are shown at a time. */
const PAGE = 500;

/** @typedef {import("../job-types.js").MemberRow} MemberRow */
/** @typedef {import("../job-types.js").MemberTable} MemberTable */
/** @typedef {{sort: string, axis: string | null, reverse: boolean}} Order */

/** A member has no state for a moment after its end. @param {string | null} state */
const stateWords = (state) => state ?? "just ended";

/** @param {{id: string, row: MemberRow, axes: string[]}} props */
function Cell({ id, row, axes }) {
  const values = axes.map((axis, place) => `${axis}=${row.values[place]}`).join(" ");
  const words = `${id}_${row.index} ${stateWords(row.state)}${values ? `, ${values}` : ""}`;
  return html`<li><a class=${`cell ${row.state ?? "gone"}`} href=${jobLink(`${id}_${row.index}`)} title=${words} aria-label=${words}></a></li>`;
}

/** @param {{id: string, row: MemberRow}} props */
function Row({ id, row }) {
  const memory = row.used_bytes ?? row.peak_bytes;
  return html`
    <tr>
      <th scope="row"><a href=${jobLink(`${id}_${row.index}`)}>${row.index}</a></th>
      <td><span class=${`dot ${row.state ?? "gone"}`} aria-hidden="true"></span>${stateWords(row.state)} <small>${row.ended}</small></td>
      ${row.values.map((each, place) => html`<td key=${place}><bdi>${each}</bdi></td>`)}
      <td class="figure">${row.duration_s === null ? "" : duration(row.duration_s)}</td>
      <td class="figure">${memory === null ? "" : size(memory)}${row.used_bytes === null ? null : html` <small>now</small>`}</td>
      <td>${row.host ?? ""}</td>
    </tr>
  `;
}

/** @param {{table: MemberTable, order: Order, onSort: (sort: string, axis?: string | null) => void}} props */
function Heads({ table, order, onSort }) {
  /** @type {[string, string, string | null, string][]} */
  const columns = [["Index", "index", null, ""], ["State", "state", null, ""], ...table.axes.map((each) => /** @type {[string, string, string | null, string]} */ ([each, "value", each, ""])), ["Took", "duration", null, "figure"], ["Memory", "peak", null, "figure"]];
  return html`
    <tr>${columns.map(([label, sort, axis, kind]) => {
      const isOn = order.sort === sort && order.axis === axis;
      return html`<th scope="col" key=${`${sort}${axis}`} class=${kind} aria-sort=${isOn ? (order.reverse ? "descending" : "ascending") : undefined}>
        ${table.sortable || sort === "index" ? html`<button type="button" class="head" onClick=${() => onSort(sort, axis)}><bdi>${label}</bdi><span aria-hidden="true" class="arrow">${isOn ? (order.reverse ? "↓" : "↑") : ""}</span></button>` : html`<bdi>${label}</bdi>`}</th>`;
    })}<th scope="col">Host</th></tr>
  `;
}

/** @param {{id: string, path: string, state: string}} props */
export function Members({ id, path, state }) {
  const [order, setOrder] = useState(/** @type {Order} */ ({ sort: "index", axis: null, reverse: false }));
  const [offset, setOffset] = useState(0);
  const url = useMemo(() => address(`${path}/members`, { ...order, offset, limit: PAGE }), [path, order, offset]);
  /** @type {import("../api.js").Polled<MemberTable>} */
  const { value: table, error } = usePolled(url, isEnd(state) ? ENDED_MS : EVERY_MS);
  if (!table) return html`<${Trouble} error=${error} />`;
  /** @param {string} sort @param {string | null} [axis] */
  const sorted = (sort, axis = null) => {
    setOrder({ sort, axis, reverse: order.sort === sort && order.axis === axis && !order.reverse });
    setOffset(0);
  };
  const { rows, total, axes } = table;
  const last = table.offset + rows.length;
  const states = [...new Set(rows.map((each) => each.state))];
  return html`
    <${Panel} name="members" title="Members" tools=${total > PAGE ? html`
      <span class="pages"><button type="button" disabled=${offset === 0} onClick=${() => setOffset(Math.max(0, offset - PAGE))}>Before</button>
        ${(table.offset + 1).toLocaleString()} to ${last.toLocaleString()} of ${total.toLocaleString()}
        <button type="button" disabled=${last >= total} onClick=${() => setOffset(offset + PAGE)}>Next</button></span>` : null}>
      <${Trouble} error=${error} at=${table.at} />
      <p class="legend">${states.map((each) => html`<span key=${each}><i class=${`cell ${each ?? "gone"}`}></i>${stateWords(each)} ${rows.filter((row) => row.state === each).length}</span>`)}</p>
      <ul class="cells">${rows.map((each) => html`<${Cell} key=${each.index} id=${id} row=${each} axes=${axes} />`)}</ul>
      <div class="wide member-rows" tabindex="0" role="region" aria-label="Members, scrollable">
        <table class="figures">
          <thead><${Heads} table=${table} order=${order} onSort=${sorted} /></thead>
          <tbody>${rows.map((each) => html`<${Row} key=${each.index} id=${id} row=${each} />`)}</tbody>
        </table>
      </div>
    <//>
  `;
}
