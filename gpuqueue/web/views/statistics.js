// Statistics of a period, as `gpuqueue stats` gives them: usage, memory, waits and failures.
import { address } from "../api.js";
import { failedOf, hours, shareOf, usedShare } from "../figures.js";
import { html, useMemo } from "../lib.js";
import { DayChart } from "../parts/day-chart.js";
import { Download } from "../parts/download.js";
import { TextFilter, filter } from "../parts/filter-fields.js";
import { none } from "../parts/none.js";
import { PeriodChoice } from "../parts/period-choice.js";
import { Tabs } from "../parts/tabs.js";
import { Trouble } from "../parts/trouble.js";
import { momentOf } from "../period.js";
import { useRead } from "../reading.js";
import { duration, fullTime, percent, plural } from "../words.js";
import { StatisticsTable } from "./statistics-table.js";
import { UnusedMemory } from "./unused-memory.js";

/** @typedef {import("../history-types.js").Figures} Figures */
/** @typedef {import("../history-types.js").Statistics} Statistics */

const USUAL = "30d";
const GROUPINGS = [["user", "By user"], ["device", "By device"], ["host", "By host"], ["day", "By day"]];
/** A known share below this one is pointed out. */
const MOSTLY = 0.995;

/** @param {{query: Record<string, string>, by: string, users: string[], csv: string, reach: Statistics | null}} props */
function StatisticsFilters({ query, by, users, csv, reach }) {
  return html`
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <${Tabs} label="Grouping" choices=${GROUPINGS} chosen=${by} onChoose=${(/** @type {string} */ value) => filter({ by: value === "user" ? null : value })} />
      <${PeriodChoice} query=${query} usual=${USUAL} firstAt=${reach?.first_at} lastAt=${reach?.last_at} />
      <${TextFilter} name="user" label="User" value=${query.user} choices=${users} />
      <${Download} kind="csv" path=${csv}>CSV<//>
    </form>
  `;
}

/** @param {{found: Statistics}} props */
function Totals({ found }) {
  const { total } = found;
  const failed = failedOf(total);
  return html`
    <dl class="totals">
      <div><dt>Jobs</dt><dd>${total.jobs.toLocaleString()} <small>${plural(total.runs, "run")}</small></dd></div>
      <div><dt>GPU-hours</dt><dd>${hours(total.gpu_s)}${total.cpu_s ? html` <small>and ${hours(total.cpu_s)} CPU-hours</small>` : null}</dd></div>
      <div><dt>Memory used of asked</dt><dd>${percent(usedShare(total))} <small>at the peaks</small></dd></div>
      <div><dt>Median wait</dt><dd>${total.wait_median_s === null ? none() : duration(total.wait_median_s)} ${total.wait_p95_s === null ? null : html`<small>95 %: ${duration(total.wait_p95_s)}</small>`}</dd></div>
      <div><dt>Failed</dt><dd>${percent(shareOf(failed, total.ended))} <small>${failed.toLocaleString()} of ${plural(total.ended, "ended run")}, ${total.out_of_memory.toLocaleString()} out of memory</small></dd></div>
      ${total.utilisation === null ? null : html`<div><dt>Device load during runs</dt><dd>${percent(total.utilisation)}</dd></div>`}
    </dl>
  `;
}

/** @param {{found: Statistics}} props */
function Charts({ found }) {
  if (found.groups.length < 2) return null;
  return html`
    <div class="charts">
      <${DayChart} title="GPU-hours" unit=${3600} days=${found.groups} value=${(/** @type {Figures} */ each) => each.gpu_s} shown=${(/** @type {number} */ value) => `${hours(value)} h`} />
      <${DayChart} title="Failed runs" unit=${1} isWhole days=${found.groups} value=${failedOf} shown=${(/** @type {number} */ value) => value.toLocaleString()} kind="bad" />
      <${DayChart} title="Median wait" days=${found.groups} value=${(/** @type {Figures} */ each) => each.wait_median_s} shown=${duration} kind="warn" adds=${false} />
    </div>
  `;
}

/** @param {{found: Statistics}} props */
function Notes({ found }) {
  const { total } = found;
  const measured = shareOf(total.measured_s, total.held_s);
  return html`
    <p class="note">${fullTime(found.since)} to ${fullTime(found.until)}. GPU-hours are the time of the cards: jobs that share a card share its time by their allocated memory. Memory is the mean of a device over time.
      ${measured !== null && measured < MOSTLY ? ` Peaks are known for ${percent(measured)} of the time on devices: the memory used of asked is of that time alone. A job that runs has none yet.` : ""}
      ${total.ended < total.runs ? ` ${(total.runs - total.ended).toLocaleString()} of ${plural(total.runs, "run")} ended later or still run.` : ""}</p>
  `;
}

/** @param {{query: Record<string, string>}} props */
function Empty({ query }) {
  return html`<div class="empty"><p>Nothing ran in this time${query.user ? html` for <bdi>${query.user}</bdi>` : ""}. Choose a longer period, or submit a job:</p>
    <pre>gpuqueue submit train.py --mem 6G</pre></div>`;
}

/** @param {{query: Record<string, string>}} props */
export function StatisticsView({ query }) {
  const by = GROUPINGS.some(([value]) => value === query.by) ? query.by : "user";
  const period = useMemo(() => {
    const now = Date.now();
    return { since: momentOf(query.since ?? USUAL, now), until: momentOf(query.until, now), user: query.user };
  }, [query.since, query.until, query.user]);
  const url = (/** @type {string} */ grouping) => address("/stats", { ...period, by: grouping });
  /** @type {import("../reading.js").Once<Statistics>} */
  const shown = useRead(url(by));
  /** @type {import("../reading.js").Once<Statistics>} */
  const people = useRead(by === "user" ? null : url("user"));
  /** @type {import("../reading.js").Once<Statistics>} */
  const days = useRead(by === "day" ? null : url("day"));
  const { value: found, error } = shown;
  const byUser = by === "user" ? found : people.value;
  const byDay = by === "day" ? found : days.value;
  const users = (byUser?.by === "user" ? byUser.groups : []).map((each) => each.label);
  return html`
    <h1 class="hidden">Statistics</h1>
    <${StatisticsFilters} query=${query} by=${by} users=${users} reach=${found} csv=${address("/stats/csv", { ...period, by })} />
    <${Trouble} error=${error} />
    ${error ? html`<p><button type="button" onClick=${shown.again}>Try again</button></p>` : null}
    ${found || error ? null : html`<p class="loading">Adding up…</p>`}
    ${found && !found.total.runs && !error ? html`<${Empty} query=${query} />` : null}
    ${found?.total.runs ? html`
      <div class=${shown.of === url(by) ? "" : "old"}>
        <${Totals} found=${found} />
        ${byDay?.by === "day" ? html`<${Charts} found=${byDay} />` : null}
        ${days.error ? html`<p class="none">No charts by day: ${days.error.message}</p>` : null}
        <h2>${GROUPINGS.find(([value]) => value === found.by)?.[1]}</h2>
        <${StatisticsTable} found=${found} query=${query} />
        <${Notes} found=${found} />
      </div>` : null}
    ${found || error ? html`<${UnusedMemory} groups=${byUser?.by === "user" ? byUser.groups : []} user=${query.user} />` : null}
  `;
}
