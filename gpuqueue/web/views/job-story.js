// The timeline of a job: what happened to it and when, and what it waited for in between.
import { address, read } from "../api.js";
import { waitWords } from "../job-words.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { lastRun } from "../record.js";
import { jobLink } from "../route.js";
import { storyOf } from "../story.js";
import { between, clock, duration, fullTime } from "../words.js";

/** Steps that are shown at first. The others are one click away. */
const MOST = 14;
const EXACT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** The time of a step: of today to the second. @param {string} iso */
const stepClock = (iso) => (new Date(iso).toDateString() === new Date().toDateString() ? EXACT.format(new Date(iso)) : clock(iso));

/** @typedef {import("../job-types.js").JobView} JobView */
/** @typedef {import("../job-types.js").JobEvent} JobEvent */

/** Since when a job that waits has done so. @param {JobView} view @param {JobEvent[] | null} events */
function waitsSince(view, events) {
  const last = events?.findLast((each) => ["submit", "finish", "hold", "release", "ready", "lose", "release_claim", "restore"].includes(each.act));
  return last?.at ?? lastRun(view.record)?.ended_at ?? view.record.job.submitted_at;
}

/** @param {{view: JobView, path: string, state: string, row: import("../types.js").QueueRow | null, now: number}} props */
export function Story({ view, path, state, row, now }) {
  const [events, setEvents] = useState(/** @type {JobEvent[] | null} */ (null));
  const [isWhole, setWhole] = useState(false);
  useEffect(() => {
    if (!view.rights.arguments) return;
    // Without the history there are the runs alone.
    read(`${path}/events`).then(setEvents, () => null);
  }, [view]);
  const entries = useMemo(() => storyOf(view, events), [view, events]);
  const shown = isWhole ? entries : entries.slice(-MOST);
  const isWaiting = state === "queued" || state === "held";
  const since = isWaiting ? waitsSince(view, events) : null;
  return html`
    <${Panel} name="story" title="Story">
      ${entries.length > shown.length ? html`<button type="button" class="plain" onClick=${() => setWhole(true)}>Show ${entries.length - shown.length} earlier steps</button>` : null}
      <ol class="timeline">
        ${shown.map((each, place) => html`
          <li key=${place} class=${`entry k-${each.kind}`}>
            <time datetime=${each.at} title=${fullTime(each.at)}>${stepClock(each.at)}</time>
            <span><bdi>${each.words}</bdi>${each.job ? html` for <a href=${jobLink(each.job)}>job ${each.job}</a>` : null}${each.detail ? html` <small><bdi>${each.detail}</bdi></small>` : null}</span>
          </li>`)}
        ${since ? html`<li key="now" class="entry k-wait"><time datetime=${since}>now</time><span>waits ${waitWords(row?.reason ?? view.record.job.reason)}, for ${duration(between(since, now))} so far</span></li>` : null}
      </ol>
    <//>
  `;
}
