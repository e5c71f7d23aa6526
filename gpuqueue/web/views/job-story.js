// The timeline of a job: what happened to it and when, and what it waited for in between.
import { read } from "../api.js";
import { isEnd } from "../job-states.js";
import { html, useEffect, useState } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { jobLink } from "../route.js";
import { between, clock, duration, fullTime } from "../words.js";

/** Steps that are shown at first. The others are one click away. */
const MOST = 14;
/** The history has the end of a job after so long. */
const HISTORY_MS = 3000;
const EXACT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** The time of a step: of today to the second. @param {string} iso */
const stepClock = (iso) => (new Date(iso).toDateString() === new Date().toDateString() ? EXACT.format(new Date(iso)) : clock(iso));

/** @typedef {import("../job-types.js").StoryStep} StoryStep */

/** The words of a step with its figures. @param {StoryStep} step @param {number} now */
function wordsOf({ at, kind, words, duration_s: took }, now) {
  if (kind !== "wait") return words;
  return took === null ? `waits ${words}, for ${duration(between(at, now))} so far` : `waited ${duration(took)} ${words}`;
}

/** @param {StoryStep} step */
function detailOf({ kind, detail, duration_s: took, until }) {
  const after = kind === "wait" || took === null ? "" : `after ${duration(took)}`;
  return [after, until ? `${detail} ${clock(until)}` : detail].filter(Boolean).join(", ");
}

/** @param {{view: import("../job-types.js").JobView, path: string, now: number}} props the story is read again with each *view* */
export function Story({ view, path, now }) {
  const [steps, setSteps] = useState(/** @type {StoryStep[]} */ ([]));
  const [isWhole, setWhole] = useState(false);
  useEffect(() => {
    const again = () => read(`${path}/story`).then(setSteps, () => null);
    again();
    if (!isEnd(view.record.job.state)) return undefined;
    const timer = setTimeout(again, HISTORY_MS); // the view may be newer than the events in the history
    return () => clearTimeout(timer);
  }, [view]);
  const shown = isWhole ? steps : steps.slice(-MOST);
  return html`
    <${Panel} name="story" title="Story">
      ${steps.length > shown.length ? html`<button type="button" class="plain" onClick=${() => setWhole(true)}>Show ${steps.length - shown.length} earlier steps</button>` : null}
      <ol class="timeline">
        ${shown.map((step, place) => {
          const isNow = step.kind === "wait" && step.duration_s === null;
          const detail = detailOf(step);
          return html`
          <li key=${isNow ? "now" : place} class=${`entry k-${step.kind}`}>
            <time datetime=${step.at} title=${fullTime(step.at)}>${isNow ? "now" : stepClock(step.at)}</time>
            <span><bdi>${wordsOf(step, now)}</bdi>${step.for_job ? html` for <a href=${jobLink(step.for_job)}>job ${step.for_job}</a>` : null}${detail ? html` <small><bdi>${detail}</bdi></small>` : null}</span>
          </li>`;
        })}
      </ol>
    <//>
  `;
}
