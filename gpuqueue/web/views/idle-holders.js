// The jobs that hold memory of devices and do not use them: who could make room for others.
import { html } from "../lib.js";
import { jobLink, link } from "../route.js";
import { deviceLabel, idleWords, plural, size } from "../words.js";

/** @typedef {import("../types.js").DeviceView} DeviceView */

const MOST = 5;

/** The idle jobs on some devices, those with the most memory first. @param {DeviceView[]} devices */
export function idleOn(devices) {
  /** @type {Map<number, {run: import("../types.js").DeviceRun, bytes: number, places: string[]}>} */
  const found = new Map();
  for (const device of devices) {
    for (const run of device.runs.filter((each) => each.idle_since !== null)) {
      const was = found.get(run.job_id) ?? { bytes: 0, places: [] };
      found.set(run.job_id, { run, bytes: was.bytes + run.allocated_bytes, places: [...was.places, `${device.host} ${deviceLabel(device)}`] });
    }
  }
  return [...found.values()].sort((one, other) => other.bytes - one.bytes);
}

/** @param {{devices: DeviceView[], now: number}} props */
export function IdleHolders({ devices, now }) {
  const idle = idleOn(devices);
  if (!idle.length) return null;
  const bytes = idle.reduce((sum, each) => sum + each.bytes, 0);
  return html`
    <section class="banner idle-holders" aria-labelledby="idle-head">
      <h2 id="idle-head">${plural(idle.length, "job holds", "jobs hold")} ${size(bytes)} and ${idle.length === 1 ? "uses no device" : "use no device"}</h2>
      <ul>
        ${idle.slice(0, MOST).map(({ run, bytes: held, places }) => html`
          <li key=${run.job_id}><a href=${jobLink(run.label ?? run.job_id)}>${run.label}</a> <bdi>${run.name}</bdi> <small><bdi>${run.user}</bdi></small>${" "}
            <span>${size(held)} on ${places.join(", ")}, ${idleWords(/** @type {string} */ (run.idle_since), now)}</span></li>`)}
      </ul>
      ${idle.length > MOST ? html`<a href=${link("queue", { idle: "1" })}>Show all ${idle.length}</a>` : null}
    </section>
  `;
}
