// The memory of a device as one bar: used by jobs, allocated to them and not used, external, headroom (kept free), free
// and not given to jobs now, free.
import { html } from "../lib.js";
import { size } from "../words.js";

/** @typedef {{name: string, bytes: number, words: string}} Part */

/** The memory that a job on one device could have now: beside a reserved job less than what is free. @param {import("../types.js").DeviceView} device */
export const availableOf = ({ free_bytes: free, reserved_for: reserved, beside_bytes: beside }) => (reserved === null ? free : Math.min(free, beside ?? 0));

/** @param {import("../types.js").DeviceView} device @returns {Part[]} */
export function partsOf(device) {
  const used = Math.min(device.used_bytes, device.total_bytes);
  const allocated = Math.max(0, device.allocated_bytes - used);
  const external = device.external_bytes ?? 0;
  const headroom = Math.min(device.headroom_bytes, Math.max(0, device.total_bytes - used - allocated - external));
  const free = Math.max(0, device.total_bytes - used - allocated - external - headroom);
  const closed = device.closed ? Math.max(0, free - availableOf(device)) : 0;
  return [
    { name: "used", bytes: used, words: "used by jobs" },
    { name: "allocated", bytes: allocated, words: "allocated, not used" },
    { name: "external", bytes: external, words: "processes outside of the queue" },
    { name: "headroom", bytes: headroom, words: "kept free by the site" },
    { name: "closed", bytes: closed, words: `not given to jobs now: ${device.closed}` },
    { name: "free", bytes: free - closed, words: "free" },
  ];
}

/** @param {{device: import("../types.js").DeviceView}} props */
export function MemoryBar({ device }) {
  const parts = partsOf(device);
  const text = parts.filter((each) => each.bytes > 0).map((each) => `${size(each.bytes)} ${each.words}`).join(", ");
  const title = device.external_bytes === null ? `${text}; what processes outside of the queue use is unknown` : text;
  return html`
    <div class="bar" role="img" aria-label=${title} title=${title}>
      ${parts.map((each) => html`<span class=${`part ${each.name}`} style=${{ flexGrow: String(each.bytes / device.total_bytes) }}></span>`)}
    </div>
  `;
}

export function Legend() {
  const names = [["used", "used by jobs"], ["allocated", "allocated, not used"], ["external", "processes outside of the queue"], ["headroom", "kept free by the site"], ["closed", "not given to jobs now"], ["free", "free"]];
  return html`
    <p class="legend">
      ${names.map(([name, words]) => html`<span><i class=${`part ${name}`}></i>${words}</span>`)}
    </p>
  `;
}
