// The jobs that have ended since the last visit, those that failed first.
import { html } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { labelOf, lastRun } from "../record.js";
import { readsOnly } from "../rights.js";
import { jobLink, link } from "../route.js";
import { clock, duration, fullTime, plural } from "../words.js";
import { Memory, Result } from "./history-row.js";

/** Jobs that are shown if none is new. */
const MOST_OLDER = 5;

/** @typedef {import("../history-types.js").HistoryRow} HistoryRow */

/** @param {HistoryRow} row */
const hasFailed = ({ record }) => ["failed", "lost"].includes(record.job.state);

/** @param {{rows: HistoryRow[], maySubmit: boolean, label: string}} props */
function Table({ rows, maySubmit, label }) {
  return html`
    <table class="figures stacked mine-table" aria-label=${label}>
      <thead><tr><th scope="col" class="id">Job</th><th scope="col" class="name">Name</th><th scope="col" class="memory">Peak memory</th><th scope="col" class="result">Result</th><th scope="col">Ran</th><th scope="col">Ended</th><th scope="col"><span class="hidden">Run again</span></th></tr></thead>
      <tbody>${rows.map((row) => {
        const { record } = row;
        const { job } = record;
        const name = labelOf(job);
        const ran = lastRun(record)?.duration_s ?? null;
        return html`
          <tr key=${job.id}>
            <th scope="row" class="id"><a href=${jobLink(name)}>${name}</a></th>
            <td class="name"><a class="job-name" href=${jobLink(name)}><bdi>${job.spec.name}</bdi></a>
              ${job.tags.map((each) => html` <a key=${each} class="tag" href=${link("history", { tag: each })}><bdi>${each}</bdi></a>`)}</td>
            <td class="memory"><${Memory} record=${record} /></td>
            <td class="result"><${Result} row=${row} /></td>
            <td data-label="ran">${ran === null ? "" : duration(ran)}</td>
            <td data-label="ended">${job.ended_at ? html`<time datetime=${job.ended_at} title=${fullTime(job.ended_at)}>${clock(job.ended_at)}</time>` : null}</td>
            <td>${maySubmit ? html`<a href=${link("submit", { again: name })} aria-label=${`Run again: job ${name}`}>Run again</a>` : null}</td>
          </tr>`;
      })}</tbody>
    </table>
  `;
}

/**
 * @param {object} props
 * @param {import("../types.js").Me} props.me
 * @param {HistoryRow[]} props.rows those that are new
 * @param {HistoryRow[]} props.older all that are known, the newest end first
 * @param {boolean} props.isKnown whether the history has answered
 * @param {boolean} props.isCut whether there may be more
 * @param {number | null} props.since in milliseconds
 * @param {() => void} props.onSeen
 */
export function EndedJobs({ me, rows, older, isKnown, isCut, since, onSeen }) {
  const failed = rows.filter(hasFailed);
  const sorted = [...failed, ...rows.filter((each) => !hasFailed(each))];
  const maySubmit = !readsOnly(me);
  const title = html`Ended since your last visit <small>${rows.length.toLocaleString()}${failed.length ? html`, <span class="bad-text">${failed.length.toLocaleString()} failed</span>` : null}</small>`;
  const tools = rows.length ? html`<button type="button" onClick=${onSeen}>I have seen ${rows.length === 1 ? "it" : "them"}</button>` : null;
  const isAll = isCut && rows.length === older.length;
  return html`
    <${Panel} name="mine-ended" title=${title} tools=${tools}>
      ${sorted.length ? html`<${Table} rows=${sorted} maySubmit=${maySubmit} label="Ended since your last visit" />` : null}
      ${isKnown && !sorted.length ? html`<p class="none">No job of yours has ended${since === null ? "" : html` since ${clock(new Date(since).toISOString())}`}.</p>` : null}
      ${isKnown ? null : html`<p class="loading">Loading the history…</p>`}
      ${!sorted.length && older.length ? html`<h3>Before that</h3><${Table} rows=${older.slice(0, MOST_OLDER)} maySubmit=${maySubmit} label="Jobs that ended before" />` : null}
      ${older.length ? html`<p><a href=${link("history", { mine: "1" })}>${isAll ? `More than ${plural(rows.length, "job")}: all` : "All"} your ended jobs</a></p>` : null}
    <//>
  `;
}
