// Reserve a device for somebody by the calendar, and cancel what is reserved.
import { change, noted } from "../api.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, Field, described } from "../parts/field.js";
import { deviceLabel } from "../words.js";
import { spanWords } from "./device-row.js";

/** @typedef {import("../types.js").DeviceView} Device */
/** @typedef {import("../types.js").Me} Me */

const HOUR_MS = 3600000;
const MINUTE_MS = 60000;

/** A moment as a field for local time has it. @param {number} at */
const localTime = (at) => new Date(at - new Date(at).getTimezoneOffset() * MINUTE_MS).toISOString().slice(0, 16);

/** @param {{device: Device, me: Me, onDone: () => void, onNo: () => void}} props */
function Reserve({ device, me, onDone, onNo }) {
  const what = `${deviceLabel(device)} of ${device.host}`;
  const [fields, setFields] = useState({ from: localTime(Date.now()), until: localTime(Date.now() + HOUR_MS), users: me.account, reason: "" });
  const [wrong, setWrong] = useState(/** @type {string | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const closed = device.drained ? `drained: ${device.drained}` : device.silent_s === null ? device.trouble : "its worker is silent";
  /** Change on the server, and close the dialog, or say what is wrong. @param {string} path @param {any} body */
  const ask = async (path, body) => {
    setBusy(true);
    setWrong(null);
    try {
      await change("POST", path, body);
      onDone();
    } catch (error) {
      setWrong(noted(error).message);
      setBusy(false);
    }
  };
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    return ask("/reservations", {
      devices: [device.uuid],
      begins_at: new Date(fields.from).toISOString(),
      ends_at: new Date(fields.until).toISOString(),
      users: fields.users.split(/[\s,]+/).filter(Boolean),
      reason: fields.reason.trim(),
    });
  };
  /** @param {"from" | "until" | "users" | "reason"} name @param {Record<string, any>} [more] */
  const input = (name, more) => html`<input id=${`reserve-${name}`} class="line" value=${fields[name]} onInput=${(/** @type {any} */ event) => setFields({ ...fields, [name]: event.currentTarget.value })} ...${described(`reserve-${name}`, null, name !== "until")} ...${more} />`;
  return html`
    <${Dialog} title=${`Reserve ${what}`} onClose=${onNo}>
      ${device.calendar.length ? html`<ul class="reservations" aria-label="Reservations">${device.calendar.map((each) => html`
        <li key=${each.id}><bdi>${spanWords(each)}</bdi>${mayCancel(me, each) ? html` <button type="button" class="plain" disabled=${isBusy} onClick=${() => ask(`/reservations/${each.id}/cancel`, {})} aria-label=${`Cancel reservation ${each.id}`}>Cancel</button>` : null}</li>`)}</ul>` : null}
      ${closed ? html`<p class="warn-text">It takes no jobs now, reserved or not: <bdi>${closed}</bdi></p>` : null}
      <form onSubmit=${submitted}>
        <p>Only jobs of these users start there then. What still runs of others at the start is preempted if it may run again.</p>
        <${Field} id="reserve-from" label="From" hint="In your local time">${input("from", { type: "datetime-local", required: true })}<//>
        <${Field} id="reserve-until" label="Until">${input("until", { type: "datetime-local", required: true })}<//>
        <${Field} id="reserve-users" label="For" hint=${me.admin ? "Accounts, with a space between them" : "You; administrators reserve for others"}>${input("users", { required: true, readonly: !me.admin, autocomplete: "off" })}<//>
        <${Field} id="reserve-reason" label="Reason" hint="Everybody who looks at the devices reads it">${input("reason", { maxlength: 200, autocomplete: "off" })}<//>
        <${Fault} id="reserve" words=${wrong} />
        <p class="actions">
          <button class="main" disabled=${isBusy}>Reserve ${what}</button>
          <button type="button" onClick=${onNo}>Close</button>
        </p>
      </form>
    <//>
  `;
}

/** Whether the caller may cancel a reservation. @param {Me} me @param {import("../types.js").CalendarReservation} reservation */
const mayCancel = (me, { users, by }) => me.admin || by === me.account || (users.length === 1 && users[0] === me.account);

/** The button that opens the dialog. @param {{device: Device, me: Me, onChange: () => void}} props */
export function DeviceReserve({ device, me, onChange }) {
  const [asks, setAsks] = useState(false);
  const done = () => {
    setAsks(false);
    onChange();
  };
  return html`
    <span class="drain"><button type="button" class="plain" onClick=${() => setAsks(true)} aria-label=${`Reserve ${deviceLabel(device)} of ${device.host}…`}>Reserve…</button></span>
    ${asks ? html`<${Reserve} device=${device} me=${me} onDone=${done} onNo=${() => setAsks(false)} />` : null}
  `;
}
