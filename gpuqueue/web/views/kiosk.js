// The devices and the queue for a screen that nobody touches: large, without controls, and with the age of what it shows.
import { address, usePolled } from "../api.js";
import { html } from "../lib.js";
import { useNow } from "../now.js";
import { MemoryBar, availableOf } from "../parts/memory-bar.js";
import { Age } from "../parts/top-bar.js";
import { Trouble } from "../parts/trouble.js";
import { clock, deviceLabel, duration, plural, size } from "../words.js";
import { emptyAt } from "../room.js";
import { HOT_C } from "./device-row.js";
import { useDevices } from "./overview.js";

const EVERY_MS = 2000;
/** Jobs in line that are shown, and users of a device. */
const MOST_WAITING = 8;
const MOST_USERS = 4;

/** @typedef {import("../types.js").DeviceView} Device */
/** @typedef {import("../types.js").QueueRow} QueueRow */

/** What a reader from afar should know of a device, and how bad it is. @param {Device} device @returns {[string, string]} */
function stateOf(device) {
  const { silent_s: silent, trouble, drained, temperature_c: heat, runs } = device;
  if (silent !== null) return [`no heartbeat for ${duration(silent)}`, "bad-text"];
  if (trouble) return [trouble, "bad-text"];
  if (drained) return [`drained: ${drained}`, "warn-text"];
  if (device.calendar_words) return [device.calendar_words, "warn-text"];
  if ((heat ?? 0) >= HOT_C) return [`hot: ${Math.round(heat ?? 0)} °C`, "warn-text"];
  if (!runs.length) return ["empty", "good-text"];
  const empty = emptyAt(device);
  return [empty ? `empty ${empty.isProbable ? "at about" : "by"} ${clock(empty.at)}` : "", ""];
}

/** @param {{device: Device}} props */
function Card({ device }) {
  const users = [...new Set(device.runs.map((each) => each.user ?? "a job"))];
  const [state, kind] = stateOf(device);
  return html`
    <li class="kiosk-device">
      <p><strong>${device.host} ${deviceLabel(device)}</strong> <span class="kiosk-free">${size(availableOf(device))} <small>free</small></span></p>
      <${MemoryBar} device=${device} />
      <p><bdi>${users.slice(0, MOST_USERS).join(", ")}${users.length > MOST_USERS ? ` and ${users.length - MOST_USERS} more` : ""}</bdi> <span class=${kind}>${state}</span></p>
    </li>
  `;
}

/** @param {{row: QueueRow, now: number}} props */
const Waiting = ({ row, now }) => html`
  <tr><th scope="row"><bdi>${row.user}</bdi></th><td class="name"><bdi>${row.name}</bdi></td><td>${row.whole ? "whole device" : size(row.mem_bytes)}${row.gpus > 1 ? ` × ${row.gpus}` : ""}</td><td>${duration((now - new Date(row.submitted_at).getTime()) / 1000)}</td></tr>`;

export function Kiosk() {
  /** @type {import("../api.js").Polled<import("../types.js").Overview>} */
  const { value, error } = usePolled(address("/overview"), EVERY_MS);
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value: table } = usePolled(address("/queue-table", { state: "queued", sort: "place", limit: MOST_WAITING }), EVERY_MS);
  const now = useNow(value?.at ?? null);
  const devices = useDevices(value);
  if (!value) return html`<${Trouble} error=${error} />${error ? null : html`<p class="loading">Loading the devices…</p>`}`;
  const { counts } = value;
  const running = (counts.running ?? 0) + (counts.starting ?? 0) + (counts.cancelling ?? 0);
  return html`
    <div class="kiosk">
      <${Trouble} error=${error} at=${value.at} />
      <div class="kiosk-head">
        <h1>gpuqueue <small><bdi>${location.hostname}</bdi></small></h1>
        <p>${plural(running, "job runs", "jobs run")}, ${plural(counts.queued ?? 0, "job waits", "jobs wait")}</p>
        <p class="kiosk-clock"><${Age} /> <time>${clock(new Date(now).toISOString())}</time></p>
      </div>
      <ul class="kiosk-devices" aria-label="Devices">${devices.map((each) => html`<${Card} key=${each.uuid} device=${each} />`)}</ul>
      ${table?.rows.length ? html`
        <table class="kiosk-queue" aria-label="Next in line">
          <thead><tr><th scope="col">Next in line</th><th scope="col" class="name">Job</th><th scope="col">Memory</th><th scope="col">Waiting for</th></tr></thead>
          <tbody>${table.rows.map((row) => html`<${Waiting} key=${row.id} row=${row} now=${now} />`)}</tbody>
        </table>` : null}
      <p class="kiosk-exit"><a href="#/overview">Leave this view</a></p>
    </div>
  `;
}
