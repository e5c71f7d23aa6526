// The jobs that have not ended: found by filters, sorted, and changed one by one or many at once.
import { address, usePolled } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { Trouble } from "../parts/trouble.js";
import { readsOnly } from "../rights.js";
import { jobLink, link, refine } from "../route.js";
import { plural } from "../words.js";
import { Actions } from "./queue-actions.js";
import { Filters } from "./queue-filters.js";
import { QueueRows, ROWS_AT_ONCE } from "./queue-rows.js";

const EVERY_MS = 1000;
const DETAILS_MS = 5000;
/** The service answers for so many waiting jobs at a time. */
const MOST_PLACES = 60;
/** What names a job: 17, or 17_2 for a member of an array. */
const LABEL = /^\d+(_\d+)?$/;

/** @typedef {import("../types.js").QueueRow} QueueRow */
/** @typedef {import("../types.js").Me} Me */

/** The query of the API for the filters in the address. @param {Record<string, string>} query @param {Me} me */
function questionOf(query, me) {
  return {
    user: query.mine ? me.account : query.user,
    state: query.state ? query.state.split(",") : [],
    tag: query.tag,
    pool: query.pool,
    text: query.text,
    idle: Boolean(query.idle),
    sort: query.sort ?? "id",
    reverse: query.order === "down",
  };
}

/** @param {{me: Me, table: import("../types.js").QueueTable, query: Record<string, string>}} props */
function NoRows({ me, table, query }) {
  const all = Object.values(table.counts).reduce((sum, each) => sum + each, 0);
  if (!table.complete) return html`<p class="loading">Reading the queue…</p>`;
  if (Object.keys(query).some((each) => !["sort", "order"].includes(each))) {
    const { text, user, mine, tag } = query;
    return html`<div class="empty"><p>${all ? `None of the ${plural(all, "job")} in the queue` : "No job in the queue"} matches these filters. Jobs that have ended are in the history.</p>
      <p class="actions">
        ${LABEL.test(text ?? "") ? html`<a class="button" href=${jobLink(text)}>Show job ${text}</a>` : null}
        <a class="button" href=${link("history", { user, mine, tag, name: text })}>Search the history</a>
        <a class="button" href=${link("queue")}>Show all jobs in the queue</a>
      </p></div>`;
  }
  return html`<div class="empty"><p>No job waits or runs. To submit one, ${readsOnly(me) ? "" : html`<a href=${link("submit")}>use the form</a>, or `}type:</p>
    <pre>gpuqueue submit train.py --mem 6G</pre>
    <p><code>gpuqueue estimate train.py</code> says how much memory to ask for.</p></div>`;
}

/** Read what is shown beside the visible rows: progress of running jobs, and places of waiting ones. @param {QueueRow[]} rows */
function useDetails(rows) {
  const waiting = rows.filter((each) => each.state === "queued").slice(0, MOST_PLACES).map((each) => each.id);
  const running = rows.filter((each) => each.state === "running").map((each) => each.id);
  const key = `${waiting}|${running}`;
  const urls = useMemo(() => [
    waiting.length ? address("/job-places", { id: waiting }) : null,
    running.length ? address("/job-progress", { id: running }) : null,
  ], [key]);
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").JobPlace>>} */
  const places = usePolled(urls[0], DETAILS_MS);
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").Progress>>} */
  const progress = usePolled(urls[1], DETAILS_MS);
  return { places: places.value ?? {}, progress: progress.value ?? {} };
}

/** @param {{me: Me, query: Record<string, string>}} props */
export function Queue({ me, query }) {
  const [first, setFirst] = useState(0);
  const [selected, setSelected] = useState(/** @type {Map<number, QueueRow>} */ (new Map()));
  const [shown, setShown] = useState(/** @type {QueueRow[]} */ ([]));
  const question = questionOf(query, me);
  const words = JSON.stringify(question);
  const list = useRef(words);
  const isNewList = list.current !== words;
  list.current = words;
  const url = useMemo(() => address("/queue-table", { ...question, offset: isNewList ? 0 : first, limit: ROWS_AT_ONCE }), [words, first]);
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value: table, error, again } = usePolled(url, EVERY_MS);
  const { places, progress } = useDetails(shown);

  useEffect(() => setFirst(0), [words]);
  useEffect(() => {
    if (!table) return;
    // A selected row that is in sight follows its job; one that has left the queue is selected no more. This runs after
    // the drawing, when the selection may be another one already.
    const here = new Map(table.rows.map((each) => [each.id, each]));
    const isWhole = table.total === table.rows.length && table.complete && !Object.keys(query).length;
    setSelected((was) => {
      const next = new Map([...was].filter(([id]) => here.has(id) || !isWhole).map(([id, row]) => [id, here.get(id) ?? row]));
      return next.size !== was.size || [...next].some(([id, row]) => was.get(id) !== row) ? next : was;
    });
  }, [table]);

  if (!table) return html`<${Trouble} error=${error} />${error ? null : html`<p class="loading">Loading the queue…</p>`}`;
  /** @param {string} column */
  const sort = (column) => {
    const isSame = (query.sort ?? "id") === column;
    refine({ sort: column === "id" ? null : column, order: isSame && query.order !== "down" ? "down" : null });
  };
  return html`
    <div class="queue">
      <h1 class="hidden">Queue</h1>
      <${Trouble} error=${error} at=${table.at} />
      ${table.left_out ? html`<p class="banner" role="status">There are more jobs than this page reads: the newest are missing.</p>` : null}
      <${Filters} me=${me} query=${query} table=${table} />
      <${Actions} me=${me} selected=${selected} question=${question} total=${table.total}
        onSelect=${setSelected} onDone=${again} />
      ${table.total ? html`<${QueueRows} me=${me} table=${table} listKey=${words} sort=${query.sort ?? "id"} order=${query.order ?? "up"}
        selected=${selected} places=${places} progress=${progress} onSort=${sort} onSelect=${setSelected}
        onWindow=${setFirst} onShown=${setShown} />` : html`<${NoRows} me=${me} table=${table} query=${query} />`}
    </div>
  `;
}
