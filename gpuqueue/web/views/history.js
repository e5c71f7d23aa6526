// Past and present jobs, as `gpuqueue history` lists them: found by filters, sorted, page by page, and as a CSV file.
import { address, usePolled } from "../api.js";
import { html, useEffect, useMemo } from "../lib.js";
import { Trouble } from "../parts/trouble.js";
import { filter } from "../parts/filter-fields.js";
import { momentOf, secondsOf } from "../period.js";
import { mayChange, readsOnly } from "../rights.js";
import { link } from "../route.js";
import { bytesOf } from "../words.js";
import { useNow } from "../now.js";
import { HistoryFilters } from "./history-filters.js";
import { HistoryRowView } from "./history-row.js";

/** @typedef {import("../types.js").Me} Me */
/** @typedef {import("../history-types.js").HistoryPage} HistoryPage */
/** @typedef {import("../history-types.js").HistoryRow} HistoryRow */

const EVERY_MS = 10000;
const ROWS = 50;
/** Words of the address that are no filter. */
const NO_FILTER = ["sort", "order", "after"];
/** The order at first: the newest end. Of the members of an array it is that of their ids. @param {Record<string, string>} query */
const sortOf = (query) => query.sort ?? (query.array ? "id" : "ended");
const ENDED = ["succeeded", "failed", "cancelled", "lost"];
/** The filters with which an array is still one row: its members have them in common. */
const COMMON = ["mine", "user", "name", "tag", "since", "until"];
const COLUMNS = [
  ["id", "Job", "id"],
  ["", "Name", "name"],
  ["user", "User", "user"],
  ["", "Result", "result"],
  ["", "Device", "device"],
  ["ended", "Ended", "when"],
  ["", "Waited", "figure"],
  ["duration", "Ran", "figure"],
  ["peak", "Peak memory", "memory"],
];

/** The states that are asked for: at first those of jobs that have ended. @param {Record<string, string>} query */
function statesOf({ state, array }) {
  if (state === "all" || (!state && array)) return [];
  return state ? state.split(",") : ENDED;
}

/**
 * The pattern for a part of a name in any case. What has a sign of a pattern is one already.
 * @param {string | undefined} text
 */
export function patternOf(text) {
  if (!text || /[*?[]/.test(text)) return text;
  const signs = [...text].map((each) => {
    const [small, large] = [each.toLowerCase(), each.toUpperCase()];
    return small === large || small.length > 1 || large.length > 1 ? each : `[${small}${large}]`;
  });
  return `*${signs.join("")}*`;
}

/** The query of the API for the filters in the address. @param {Record<string, string>} query @param {Me} me */
export function questionOf(query, me) {
  const now = Date.now();
  return {
    user: query.mine ? me.account : query.user,
    name: patternOf(query.name),
    state: statesOf(query),
    ending: query.ending,
    exit_code: query.exit_code,
    tag: query.tag,
    since: momentOf(query.since, now),
    until: momentOf(query.until, now),
    device: query.device,
    model: query.model,
    host: query.host,
    min_peak_bytes: query.min_peak ? bytesOf(query.min_peak) : null,
    min_duration_s: query.min_duration ? secondsOf(query.min_duration) : null,
    max_duration_s: query.max_duration ? secondsOf(query.max_duration) : null,
    text: query.text,
    sort: sortOf(query),
    reverse: query.order === "up",
    array: query.array,
  };
}

/** Members of arrays are folded into one row where the service can do that. @param {Record<string, string>} query */
function folds(query) {
  if (query.array) return false;
  if (sortOf(query) === "id") return true;
  return sortOf(query) === "ended" && (!query.state || query.state === "all") && Object.keys(query).every((each) => COMMON.includes(each) || NO_FILTER.includes(each) || each === "state");
}

/** @param {HistoryPage | null} page @returns {HistoryRow[]} */
const rowsOf = (page) => page?.rows ?? (page?.records ?? []).map((record) => ({ record, words: "" }));

/** @param {{query: Record<string, string>}} props */
function NoRows({ query }) {
  if (query.after) return html`<div class="empty"><p>There are no more jobs.</p></div>`;
  if (Object.keys(query).some((each) => !NO_FILTER.includes(each))) {
    return html`<div class="empty"><p>No recorded job matches these filters.</p><p><a class="button" href=${link("history", { state: "all" })}>Show all jobs</a></p></div>`;
  }
  return html`<div class="empty"><p>No job has ended yet. <a href=${link("queue")}>The queue</a> has those that run and wait. To submit one, <a href=${link("submit")}>use the form</a>, or type:</p>
    <pre>gpuqueue submit train.py --mem 6G</pre></div>`;
}

/** @param {{query: Record<string, string>}} props */
function Head({ query }) {
  const sorted = sortOf(query);
  const isUp = query.order === "up";
  /** Names ascend and all else descends, unless the order is reversed. @param {string} name */
  const direction = (name) => ((name === "user") !== isUp ? "ascending" : "descending");
  /** @param {string} name */
  const sort = (name) => filter({ sort: name === sortOf({ array: query.array }) ? null : name, order: sorted === name && !isUp ? "up" : null });
  return html`
    <thead><tr>
      ${COLUMNS.map(([name, label, kind]) => html`
        <th key=${label} scope="col" class=${kind} aria-sort=${name && sorted === name ? direction(name) : undefined}>
          ${name ? html`<button type="button" class="head" onClick=${() => sort(name)}>${label}<span aria-hidden="true" class="arrow">${sorted === name ? (direction(name) === "ascending" ? "↑" : "↓") : ""}</span></button>` : label}
        </th>`)}
      <th scope="col" class="repeat"><span class="hidden">Run again</span></th>
    </tr></thead>
  `;
}

/** @param {{query: Record<string, string>, page: HistoryPage}} props */
function Pages({ query, page }) {
  if (!query.after && !page.after_id) return null;
  const { after: _, ...first } = query;
  return html`
    <nav class="page-links" aria-label="Pages">
      ${query.after ? html`<a class="button" href=${link("history", first)}>First page</a>` : null}
      ${page.after_id ? html`<a class="button" rel="next" href=${link("history", { ...query, after: String(page.after_id) })}>Next ${ROWS}</a>` : null}
    </nav>
  `;
}

/** @param {{me: Me, query: Record<string, string>}} props */
export function History({ me, query }) {
  const words = JSON.stringify(query);
  const [url, csv] = useMemo(() => {
    const { array, ...question } = questionOf(query, me);
    const page = { ...question, limit: ROWS, after_id: query.after };
    return [
      folds(query) ? address("/history/folded", page) : address("/history", { ...page, array }),
      address("/history/csv", { ...question, array }),
    ];
  }, [words, me.account]);
  /** @type {import("../api.js").Polled<HistoryPage>} */
  const { value: page, of, error } = usePolled(url, EVERY_MS);
  useEffect(() => {
    if (query.after) window.scrollTo(0, 0);
  }, [query.after]);
  const now = useNow(null);
  const rows = rowsOf(page);
  const users = [...new Set(rows.map((each) => each.record.job.spec.account.name))].sort();
  const isOld = of !== url;
  return html`
    <h1 class="hidden">History</h1>
    <${HistoryFilters} me=${me} query=${query} users=${users} csv=${csv} />
    <${Trouble} error=${error} />
    ${query.array ? html`<p>The members of array <a href=${link(`jobs/${query.array}`)}>${query.array}</a> that began. <a href=${link("history")}>Show all jobs</a></p>` : null}
    ${page || error ? null : html`<p class="loading">Loading the history…</p>`}
    ${page && rows.length ? html`
      <div class=${`wide ${isOld ? "old" : ""}`} aria-busy=${isOld ? "true" : "false"}>
        <table class="history-table" aria-label="Jobs">
          <${Head} query=${query} />
          <tbody>${rows.map((row) => html`<${HistoryRowView} key=${row.record.job.id} row=${row} now=${now} mayRepeat=${mayRepeat(me, row)} />`)}</tbody>
        </table>
      </div>` : null}
    ${page && !rows.length && !(error && isOld) ? html`<${NoRows} query=${query} />` : null}
    ${page ? html`<${Pages} query=${query} page=${page} />` : null}
  `;
}

/** @param {Me} me @param {HistoryRow} row */
function mayRepeat(me, row) {
  const { account } = row.record.job.spec;
  return !readsOnly(me) && mayChange(me, /** @type {any} */ ({ user: account.name, uid: account.uid }));
}
