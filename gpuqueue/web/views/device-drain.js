// Drain and resume: for a card that is hot or under repair. Jobs that run there go on, and no new one starts.
import { change, noted } from "../api.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, Field, described } from "../parts/field.js";
import { deviceLabel, plural } from "../words.js";
import { HOT_C } from "./device-row.js";

/** @typedef {import("../types.js").DeviceView} Device */

/** What is wrong with a device, as a reason to begin with. @param {Device} device */
function reasonFor({ temperature_c: heat, errors, trouble }) {
  if ((heat ?? 0) >= HOT_C) return `hot: ${Math.round(heat ?? 0)} °C`;
  return errors[0] ?? trouble ?? "";
}

/** @param {{what: string, running: number, reason: string, onYes: (reason: string) => Promise<void>, onNo: () => void}} props */
function AskReason({ what, running, reason, onYes, onNo }) {
  const [text, setText] = useState(reason);
  const [wrong, setWrong] = useState(/** @type {string | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  /** @param {Event} event */
  const submitted = async (event) => {
    event.preventDefault();
    setBusy(true);
    setWrong(null);
    try {
      await onYes(text.trim());
    } catch (error) {
      setWrong(noted(error).message);
      setBusy(false);
    }
  };
  return html`
    <${Dialog} title=${`Drain ${what}?`} onClose=${onNo}>
      <form onSubmit=${submitted}>
        <p>No new job starts there until it is resumed. ${running ? `${plural(running, "job")} that ${running === 1 ? "runs" : "run"} there ${running === 1 ? "goes" : "go"} on to the end.` : "No job runs there."}</p>
        <${Field} id="drain-reason" label="Reason" hint="Everybody who looks at the devices reads it" fault=${wrong}>
          <input id="drain-reason" class="line" value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)} maxlength="200" autocomplete="off" placeholder="a new fan" ...${described("drain-reason", wrong, true)} /><//>
        <p class="actions">
          <button class="main" disabled=${isBusy}>Drain ${what}</button>
          <button type="button" onClick=${onNo}>Leave it open</button>
        </p>
      </form>
    <//>
  `;
}

/**
 * The button that drains some devices, and the one that resumes them.
 * @param {object} props
 * @param {string} props.what
 * @param {Device[]} props.devices
 * @param {Record<string, any>} props.chosen the devices, as the API names them
 * @param {string} props.reason
 * @param {() => void} props.onChange
 */
function Drain({ what, devices, chosen, reason, onChange }) {
  const [asks, setAsks] = useState(false);
  const [wrong, setWrong] = useState("");
  const drained = devices.filter((each) => each.drained);
  /** @param {string} text */
  const drain = async (text) => {
    await change("POST", "/devices/drain", { ...chosen, reason: text });
    setAsks(false);
    onChange();
  };
  const resume = async () => {
    setWrong("");
    try {
      await change("POST", "/devices/resume", chosen);
    } catch (error) {
      setWrong(noted(error).message);
    }
    onChange();
  };
  const drainButton = html`<button type="button" class="plain" onClick=${() => setAsks(true)} aria-label=${`Drain ${what}…`}>Drain…</button>`;
  const resumeButton = html`<button type="button" class="plain" onClick=${resume} aria-label=${`Resume ${what}`}>Resume</button>`;
  const isPart = drained.length > 0 && drained.length < devices.length;
  // The first button stays the same element when it becomes the other one, and so keeps the focus.
  return html`
    <span class="drain">
      ${drained.length < devices.length ? drainButton : resumeButton}
      ${isPart ? resumeButton : null}
      ${wrong ? html`<span class="bad-text" role="alert">${wrong}</span>` : null}
    </span>
    ${asks ? html`<${AskReason} what=${what} running=${new Set(devices.flatMap((each) => each.runs.map((run) => run.job_id))).size} reason=${reason} onYes=${drain} onNo=${() => setAsks(false)} />` : null}
  `;
}

/** @param {{device: Device, onChange: () => void}} props */
export const DeviceDrain = ({ device, onChange }) => html`<${Drain} what=${`${deviceLabel(device)} of ${device.host}`} devices=${[device]} chosen=${{ devices: [device.uuid] }} reason=${reasonFor(device)} onChange=${onChange} />`;

/** @param {{host: string, devices: Device[], onChange: () => void}} props */
export const HostDrain = ({ host, devices, onChange }) => html`<${Drain} what=${`all of ${host}`} devices=${devices} chosen=${{ host, all_here: true }} reason="" onChange=${onChange} />`;
