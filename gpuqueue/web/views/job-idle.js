// The mark of a run that holds memory and does not use its devices: since when, and what happens next.
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
