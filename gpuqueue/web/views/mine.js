// The jobs of who is signed in: those that run, those that wait, and those that have ended since the last visit.
import { address, usePolled } from "../api.js";
import { isActive } from "../job-states.js";
import { html, useEffect, useMemo } from "../lib.js";
import { useNow } from "../now.js";
import { Panel } from "../parts/panel.js";
import { Trouble } from "../parts/trouble.js";
import { readsOnly } from "../rights.js";
import { jobLink, link } from "../route.js";
import { useVisit } from "../visits.js";
import { plural } from "../words.js";
import { EndedJobs } from "./mine-ended.js";
import { Memory, Story } from "./queue-row.js";

const EVERY_MS = 1000;
const ENDED_MS = 5000;
const DETAILS_MS = 5000;
/** Jobs that are shown, and those of them whose places are asked for. */
const MOST = 100;
const MOST_PLACES = 60;

/** @typedef {import("../types.js").QueueRow} QueueRow */
/** @typedef {import("../history-types.js").HistoryRow} HistoryRow */

/** When a job has ended, in milliseconds. @param {HistoryRow} row */
const endOf = ({ record }) => new Date(record.job.ended_at ?? 0).getTime();

/** @param {string} path @param {number[]} ids */
const detailsOf = (path, ids) => (ids.length ? address(path, { id: ids }) : null);

/**
 * @param {object} props
 * @param {string} props.name
 * @param {string} props.title
 * @param {QueueRow[]} props.rows
 * @param {number} props.now
 * @param {Record<number, import("../types.js").JobPlace>} props.places
 * @param {Record<number, import("../types.js").Progress>} props.progress
 * @param {any} [props.children] what is shown without a job
 */
function Jobs({ name, title, rows, now, places, progress, children }) {
  return html`
    <${Panel} name=${name} title=${html`${title} <small>${rows.length.toLocaleString()}</small>`}>
      ${rows.length ? html`
        <table class="figures stacked mine-table" aria-label=${title}>
          <thead><tr><th scope="col" class="id">Job</th><th scope="col" class="name">Name</th><th scope="col" class="memory">Memory</th><th scope="col">What it does, or why it waits</th></tr></thead>
          <tbody>${rows.map((row) => html`
            <tr key=${row.id}>
              <th scope="row" class="id"><a href=${jobLink(row.label)}>${row.label}</a></th>
              <td class="name"><a class="job-name" href=${jobLink(row.label)}><bdi>${row.name}</bdi></a>
                ${row.tags.map((each) => html` <a key=${each} class="tag" href=${link("queue", { tag: each })}><bdi>${each}</bdi></a>`)}
                ${row.note ? html`<small class="job-note"><bdi>${row.note}</bdi></small>` : null}</td>
              <td class="memory"><${Memory} row=${row} /></td>
              <td class="story"><span class=${`dot ${row.state}`} aria-hidden="true"></span><span class="hidden">${row.state}: </span><${Story} row=${row} now=${now} place=${places[row.id]} progress=${progress[row.id]} /></td>
            </tr>`)}</tbody>
        </table>` : children}
    <//>
  `;
}

/** @param {{me: import("../types.js").Me}} props */
export function Mine({ me }) {
  const url = address("/queue-table", { user: me.account, sort: "place", limit: MOST });
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value: table, error } = usePolled(url, EVERY_MS);
  /** @type {import("../api.js").Polled<import("../history-types.js").HistoryPage>} */
  const { value: past, error: pastError } = usePolled(address("/history/folded", { user: me.account, state: ["succeeded", "failed", "cancelled", "lost"], sort: "ended", limit: MOST }), ENDED_MS);
  const rows = table?.rows ?? [];
  const waiting = rows.filter((each) => each.state === "queued").slice(0, MOST_PLACES).map((each) => each.id);
  const running = rows.filter((each) => each.state === "running").map((each) => each.id);
  const urls = useMemo(() => [detailsOf("/job-places", waiting), detailsOf("/job-progress", running)], [`${waiting}|${running}`]);
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").JobPlace>>} */
  const places = usePolled(urls[0], DETAILS_MS);
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").Progress>>} */
  const progress = usePolled(urls[1], DETAILS_MS);
  const now = useNow(table?.at ?? null);
  const [since, see] = useVisit(me.account, table ? now : null);
  const older = useMemo(() => [...(past?.rows ?? [])].sort((one, other) => endOf(other) - endOf(one)), [past]);
  const ended = older.filter((row) => since !== null && endOf(row) > since);
  const failed = ended.filter(({ record }) => ["failed", "lost"].includes(record.job.state)).length;
  useEffect(() => {
    document.title = `${ended.length ? `(${ended.length}) ` : ""}My jobs - gpuqueue`;
  }, [ended.length]);
  if (!table) return html`<${Trouble} error=${error} />${error ? null : html`<p class="loading">Loading your jobs…</p>`}`;
  const details = { now, places: places.value ?? {}, progress: progress.value ?? {} };
  const isEmpty = !rows.length && !(past?.rows?.length ?? 1);
  return html`
    <div class="mine">
      <h1 class="hidden">My jobs</h1>
      <${Trouble} error=${error ?? pastError} at=${table.at} />
      ${ended.length ? html`<p class=${failed ? "banner bad" : "banner"}>${plural(ended.length, "job")} of yours ${ended.length === 1 ? "has" : "have"} ended since your last visit${failed ? `, ${failed.toLocaleString()} failed` : ""}. <button type="button" class="plain" onClick=${() => document.querySelector(".mine-ended")?.scrollIntoView()}>Show ${ended.length === 1 ? "it" : "them"}</button></p>` : null}
      ${isEmpty ? html`<div class="empty"><p>You have no job yet. To submit one, ${readsOnly(me) ? "" : html`<a href=${link("submit")}>use the form</a>, or `}type:</p>
        <pre>gpuqueue submit train.py --mem 6G</pre></div>` : html`
        <${Jobs} name="mine-running" title="Running" rows=${rows.filter((each) => isActive(each.state))} ...${details}><p class="none">None of your jobs runs.</p><//>
        <${Jobs} name="mine-waiting" title="Waiting" rows=${rows.filter((each) => !isActive(each.state))} ...${details}><p class="none">None of your jobs waits.</p><//>
        ${table.total > rows.length ? html`<p><a href=${link("queue", { mine: "1" })}>All ${plural(table.total, "job")} of yours in the queue</a></p>` : null}
        <${EndedJobs} me=${me} rows=${ended} older=${older} isKnown=${past !== null} isCut=${(past?.rows?.length ?? 0) === MOST} since=${since} onSeen=${see} />`}
    </div>
  `;
}
