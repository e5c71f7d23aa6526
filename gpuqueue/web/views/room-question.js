// "Is a card free for 20 GB?": an input, and the answer in one sentence.
import { html, useState } from "../lib.js";
import { link, refine } from "../route.js";
import { bytesOf, clock, deviceLabel, size } from "../words.js";

/** @typedef {import("../types.js").DeviceView} Device */

/** What a device could allocate if it were empty. @param {Device} device */
const capacity = (device) => device.total_bytes - device.headroom_bytes - (device.external_bytes ?? device.total_bytes);

/** Whether a device takes jobs at all. @param {Device} device */
const serves = (device) => device.silent_s === null && !device.drained && !device.trouble;

/**
 * @param {Device[]} devices
 * @param {number} bytes
 * @param {number} count
 * @param {number} waiting the number of jobs that wait already
 */
export function answer(devices, bytes, count, waiting) {
  const gpus = devices.some((each) => each.kind !== "cpu") ? devices.filter((each) => each.kind !== "cpu") : devices;
  const hosts = [...new Set(gpus.map((each) => each.host))];
  /** @param {(device: Device) => boolean} fits */
  const hostsWith = (fits) =>
    hosts.map((host) => gpus.filter((each) => each.host === host && fits(each))).filter((found) => found.length >= count);
  const now = hostsWith((each) => each.free_bytes >= bytes && each.reserved_for === null);
  if (now.length) {
    const places = now.flatMap((found) => `${found[0].host} ${found.slice(0, 6).map(deviceLabel).join(", ")}${found.length > 6 ? " and more" : ""}`);
    return { is: "yes", words: `Yes: ${places.slice(0, 4).join("; ")}${places.length > 4 ? "; and other hosts" : ""}.${waiting ? ` Jobs that wait already (${waiting.toLocaleString()}) may go first.` : ""}` };
  }
  const later = hostsWith((each) => serves(each) && capacity(each) >= bytes && (each.free_bytes >= bytes || each.free_at !== null));
  const times = later.map((found) => {
    const at = found.map((each) => (each.free_bytes >= bytes ? "" : /** @type {string} */ (each.free_at))).sort();
    return { host: found[0].host, at: at[count - 1] };
  });
  times.sort((one, other) => one.at.localeCompare(other.at));
  if (times.length && times[0].at) return { is: "later", words: `Not now. On ${times[0].host} by ${clock(times[0].at)}, when jobs there reach their time limits, unless waiting jobs take it.` };
  const ever = hostsWith((each) => capacity(each) >= bytes);
  if (ever.length) return { is: "later", words: "Not now. When is unknown: jobs without a time limit run there, or the devices take no jobs." };
  const largest = Math.max(0, ...gpus.map(capacity));
  return { is: "no", words: count > 1 ? `No host has ${count} devices that can give so much.` : `No device here can give so much: the largest could give ${size(largest)}.` };
}

/** @param {{devices: Device[], asked: string, count: string, waiting: number, maySubmit: boolean}} props */
export function RoomQuestion({ devices, asked, count, waiting, maySubmit }) {
  const [text, setText] = useState(asked);
  const many = Math.max(1, Number.parseInt(count, 10) || 1);
  const bytes = text.trim() ? bytesOf(text) : null;
  const found = bytes ? answer(devices, bytes, many, waiting) : null;
  /** @param {Event & {currentTarget: HTMLInputElement}} event */
  const typed = (event) => {
    setText(event.currentTarget.value);
    refine({ mem: event.currentTarget.value.trim() || null });
  };
  const [mem, gpus] = [size(bytes), many > 1 ? String(many) : null];
  return html`
    <div class="question">
      <label for="room-mem">Is there room for a job with</label>
      <input id="room-mem" class="short" value=${text} onInput=${typed} placeholder="20G" autocomplete="off" inputmode="text" aria-describedby="room-answer" />
      <label for="room-gpus">on</label>
      <select id="room-gpus" value=${String(many)} onChange=${(/** @type {any} */ event) => refine({ gpus: event.currentTarget.value === "1" ? null : event.currentTarget.value })}>
        ${[1, 2, 4, 8].map((each) => html`<option value=${String(each)}>${each === 1 ? "1 device" : `${each} devices`}</option>`)}
      </select>
      <output id="room-answer" for="room-mem room-gpus" class=${found ? `answer ${found.is}` : "answer"}>
        ${found ? found.words : text.trim() ? "Write a size such as 20G." : ""}
        ${found?.is === "yes" ? html` ${maySubmit ? html`<a href=${link("submit", { mem, gpus })}>Submit one</a>, or type ` : null}<code>gpuqueue submit --mem ${mem}${gpus ? ` --gpus ${gpus}` : ""} …</code>` : null}
      </output>
    </div>
  `;
}
