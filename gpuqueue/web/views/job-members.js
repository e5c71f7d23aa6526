// The members of an array: a map of their states or of a metric, and a table in which some of them can be chosen.
import { address, usePolled } from "../api.js";
import { isActive, isEnd } from "../job-states.js";
import { html, useMemo, useState } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { Tabs } from "../parts/tabs.js";
import { Trouble } from "../parts/trouble.js";
import { jobLink } from "../route.js";
import { between, duration, figure, size } from "../words.js";
import { ChosenMembers } from "./members-chosen.js";
import { howToReport } from "./job-metrics.js";
import { MemberMap, stateWords } from "./members-map.js";
import { ProgressBar } from "./queue-row.js";

const EVERY_MS = 2000;
const ENDED_MS = 15000;
const PROGRESS_MS = 5000;
/** Members that are shown at a time. */
const PAGE = 500;

/** @typedef {import("../job-types.js").JobView} JobView */
/** @typedef {import("../job-types.js").MemberRow} MemberRow */
/** @typedef {import("../job-types.js").MemberTable} MemberTable */
/** @typedef {{sort: string, axis: string | null, reverse: boolean}} Order */
/** @typedef {{label: string, sort: string, axis: string | null, kind: string, cell: (row: MemberRow) => any}} Column */

/** The columns that have a value in these rows. @param {MemberTable} table @param {number} now @returns {Column[]} */
function columnsOf({ rows, axes, metrics }, now) {
  /** @param {MemberRow} row */
  const took = (row) => row.duration_s ?? (row.state && isActive(row.state) && row.started_at ? between(row.started_at, now) : null);
  /** @param {MemberRow} row */
  const memory = (row) => row.used_bytes ?? row.peak_bytes;
  return [
    ...axes.map((axis, place) => ({ label: axis, sort: "value", axis, kind: "", cell: (/** @type {MemberRow} */ row) => html`<bdi>${row.values[place]}</bdi>` })),
    ...metrics.map((axis) => ({ label: axis, sort: "metric", axis, kind: "figure", cell: (/** @type {MemberRow} */ row) => (axis in row.metrics ? figure(row.metrics[axis]) : "") })),
    ...(rows.some((each) => took(each) !== null) ? [{ label: "Took", sort: "duration", axis: null, kind: "figure", cell: (/** @type {MemberRow} */ row) => { const so = took(row); return so === null ? "" : html`${duration(so)}${row.duration_s === null ? html` <small>so far</small>` : null}`; } }] : []),
    ...(rows.some((each) => memory(each) !== null) ? [{ label: "Memory", sort: "peak", axis: null, kind: "figure", cell: (/** @type {MemberRow} */ row) => (memory(row) === null ? "" : html`${size(memory(row))}${row.used_bytes === null ? null : html` <small>now</small>`}`) }] : []),
    ...(rows.some((each) => each.host) ? [{ label: "Host", sort: "", axis: null, kind: "", cell: (/** @type {MemberRow} */ row) => row.where ?? row.host ?? "" }] : []),
  ];
}

/** @param {{column: Column, isSortable: boolean, order: Order, onSort: (sort: string, axis: string | null) => void}} props */
function Head({ column: { label, sort, axis, kind }, isSortable, order, onSort }) {
  const isOn = order.sort === sort && order.axis === axis;
  return html`<th scope="col" class=${kind} aria-sort=${isOn ? (order.reverse ? "descending" : "ascending") : undefined}>
    ${sort && (isSortable || sort === "index") ? html`<button type="button" class="head" onClick=${() => onSort(sort, axis)}><bdi>${label}</bdi><span aria-hidden="true" class="arrow">${isOn ? (order.reverse ? "↓" : "↑") : ""}</span></button>` : html`<bdi>${label}</bdi>`}</th>`;
}

/** The states of the members, to show only those in one of them. @param {{table: MemberTable, chosen: string, onChoose: (state: string) => void}} props */
function States({ table, chosen, onChoose }) {
  const states = Object.entries(table.counts);
  const all = states.reduce((sum, [, count]) => sum + count, 0);
  /** @param {string} state @param {number} count */
  const shown = (state, count) => html`<i class=${`cell ${state}`}></i>${state} ${count.toLocaleString()}`;
  if (!table.sortable || states.length < 2) return html`<p class="legend">${states.map(([state, count]) => html`<span key=${state}>${shown(state, count)}</span>`)}</p>`;
  return html`<${Tabs} label="Members that are shown" kind="member-states" chosen=${chosen} onChoose=${onChoose}
    choices=${[["", `all ${all.toLocaleString()}`], ...states.map(([state, count]) => [state, shown(state, count)])]} />`;
}

/**
 * @param {object} props
 * @param {string} props.id
 * @param {string} props.path
 * @param {string} props.state
 * @param {JobView} props.view
 * @param {number} props.now
 * @param {() => void} props.onChange
 */
export function Members({ id, path, state, view, now, onChange }) {
  const [order, setOrder] = useState(/** @type {Order} */ ({ sort: "index", axis: null, reverse: false }));
  const [only, setOnly] = useState("");
  const [offset, setOffset] = useState(0);
  const [chosen, setChosen] = useState(/** @type {Map<number, MemberRow>} */ (new Map()));
  const url = useMemo(() => address(`${path}/members`, { ...order, state: only, offset, limit: PAGE }), [path, order, only, offset]);
  /** @type {import("../api.js").Polled<MemberTable>} */
  const { value: table, error, again } = usePolled(url, isEnd(state) ? ENDED_MS : EVERY_MS);
  const running = table && view.rights.logs ? table.rows.filter((each) => each.state === "running").map((each) => each.id) : [];
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").Progress>>} */
  const { value: progress } = usePolled(running.length ? address("/job-progress", { id: running }) : null, PROGRESS_MS);
  if (!table) return html`<${Trouble} error=${error} />`;
  /** @param {string} sort @param {string | null} axis */
  const sorted = (sort, axis) => {
    setOrder({ sort, axis, reverse: order.sort === sort && order.axis === axis && !order.reverse });
    setOffset(0);
  };
  const { rows, total } = table;
  const last = table.offset + rows.length;
  const columns = columnsOf(table, now);
  const mayChoose = view.rights.change || view.rights.retry;
  /** @param {MemberRow[]} some @param {boolean} isIn */
  const choose = (some, isIn) => {
    const next = new Map(chosen);
    for (const each of some) isIn ? next.set(each.index, each) : next.delete(each.index);
    setChosen(next);
  };
  const isAll = rows.length > 0 && rows.every((each) => chosen.has(each.index));
  return html`
    <${Panel} name="members" title="Members" tools=${total > PAGE ? html`
      <span class="pages"><button type="button" disabled=${offset === 0} onClick=${() => setOffset(Math.max(0, offset - PAGE))}>Before</button>
        ${(table.offset + 1).toLocaleString()} to ${last.toLocaleString()} of ${total.toLocaleString()}
        <button type="button" disabled=${last >= total} onClick=${() => setOffset(offset + PAGE)}>Next</button></span>` : null}>
      <${Trouble} error=${error} at=${table.at} />
      <${States} table=${table} chosen=${only} onChoose=${(/** @type {string} */ next) => { setOnly(next); setOffset(0); }} />
      <${MemberMap} id=${id} table=${table} />
      ${mayChoose ? html`<${ChosenMembers} id=${id} view=${view} rows=${[...chosen.values()].map((each) => rows.find((row) => row.index === each.index) ?? each)}
        onNone=${() => setChosen(new Map())} onChange=${() => { again(); onChange(); }} />` : null}
      ${view.rights.logs && !table.metrics.length && rows.some((each) => each.started_at) ? html`<p class="note">No member has reported a metric. ${howToReport()}</p>` : null}
      <div class="wide member-rows" tabindex="0" role="region" aria-label="Members, scrollable">
        <table class="figures" aria-label="Members">
          <thead><tr>
            ${mayChoose ? html`<th scope="col" class="pick"><input type="checkbox" aria-label="Choose all that are shown" checked=${isAll} onChange=${() => choose(rows, !isAll)} /></th>` : null}
            ${[{ label: "Index", sort: "index", axis: null, kind: "" }, { label: "State", sort: "state", axis: null, kind: "" }, ...columns].map((each) => html`<${Head} key=${`${each.label} ${each.sort}`} column=${each} isSortable=${table.sortable} order=${order} onSort=${sorted} />`)}
          </tr></thead>
          <tbody>${rows.map((row) => html`
            <tr key=${row.index} class=${chosen.has(row.index) ? "selected" : ""}>
              ${mayChoose ? html`<td class="pick"><input type="checkbox" aria-label=${`Choose member ${row.index}`} checked=${chosen.has(row.index)} onChange=${() => choose([row], !chosen.has(row.index))} /></td>` : null}
              <th scope="row"><a href=${jobLink(`${id}_${row.index}`)}>${row.index}</a></th>
              <td class="state"><span class=${`dot ${row.state ?? "gone"}`} aria-hidden="true"></span>${stateWords(row.state)} <small>${row.ended}</small>${progress?.[row.id] && row.state === "running" ? html`<${ProgressBar} progress=${progress[row.id]} />` : null}</td>
              ${columns.map((each) => html`<td key=${`${each.label} ${each.sort}`} class=${each.kind}>${each.cell(row)}</td>`)}
            </tr>`)}</tbody>
        </table>
      </div>
    <//>
  `;
}
