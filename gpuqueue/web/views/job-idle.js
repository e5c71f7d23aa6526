// What looks wrong about a run: since when; of one that does not use its devices also what happens next.
import { html } from "../lib.js";
import { between, clock, duration, fullTime, size } from "../words.js";

/** @param {{view: import("../job-types.js").JobView, live: import("../job-types.js").LiveJob | null, now: number}} props */
export function IdleMark({ view, live, now }) {
  const since = live?.row?.idle_since ?? null;
  if (!live || since === null) return null;
  const held = live.devices.reduce((sum, each) => sum + each.allocated_bytes, 0);
  const which = live.devices.length > 1 ? "devices" : "device";
  const { idle, rights } = view;
  return html`
    <div class="banner idle-mark">
      <p><strong>Idle for ${duration(between(since, now))}.</strong> It has not used its ${which} since <time datetime=${since} title=${fullTime(since)}>${clock(since)}</time>${held ? `, and holds ${size(held)} there` : ""}.</p>
      ${idle ? html`<p>What happens next, as its owner was told at ${clock(idle.at)}: <bdi>${idle.text}</bdi>.</p>` : null}
      ${rights.change ? html`<p>If it does nothing useful any more, cancel it: others can use the memory.</p>` : null}
    </div>
  `;
}

/**
 * The other marks of a run that goes on, and all of one that has ended.
 * @param {{view: import("../job-types.js").JobView, run: import("../job-types.js").Run | null | undefined, now: number}} props
 */
export function Marks({ view, run, now }) {
  const { job } = view.record;
  const past = (run?.marks ?? []).filter((each) => each.until !== null || run?.ended_at);
  const marks = [...job.marks.filter((each) => each.kind !== "idle"), ...past];
  if (!marks.length) return null;
  return html`
    <div class="banner marks">
      ${marks.map((each) => html`<p key=${each.kind + each.since}><strong>${each.brief} for ${duration(between(each.since, each.until ? new Date(each.until).getTime() : endOf(run, now)))}.</strong> <bdi>${each.words}</bdi>, since <time datetime=${each.since} title=${fullTime(each.since)}>${clock(each.since)}</time>${each.until || run?.ended_at ? ", which is over" : ""}.</p>`)}
    </div>
  `;
}

/** @param {import("../job-types.js").Run | null | undefined} run @param {number} now */
const endOf = (run, now) => (run?.ended_at ? new Date(run.ended_at).getTime() : now);
