// "Is a card free for 20 GB?": an input, and the answer in one sentence.
import { html, useState } from "../lib.js";
import { link, refine } from "../route.js";
import { answer } from "../room.js";
import { bytesOf, size } from "../words.js";

/** @typedef {import("../types.js").DeviceView} Device */

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
