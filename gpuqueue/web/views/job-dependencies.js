// The jobs around a job: those that it waits for, and those that wait for it, from left to right.
import { html } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { jobLink } from "../route.js";

/** @typedef {import("../job-types.js").Related} Related */

/** @param {{each: Related}} props */
function Node({ each }) {
  return html`
    <li><a href=${jobLink(each.id)}>${each.id}</a> <bdi>${each.name ?? ""}</bdi>${" "}
      <small>${each.state ? html`<span class=${`dot ${each.state}`} aria-hidden="true"></span>${each.state}` : "not known"}${each.must ? `, ${each.must}` : ""}</small></li>
  `;
}

/** @param {{view: import("../job-types.js").JobView}} props */
export function Dependencies({ view }) {
  const { after, before, record } = view;
  const { name, waits } = record.job.spec;
  const more = waits.after.length - after.length;
  if (!after.length && !before.length) return null;
  return html`
    <${Panel} name="dependencies" title="Jobs around it">
      <div class="flow">
        ${after.length ? html`<div><h3>It comes after</h3><ul>${after.map((each) => html`<${Node} key=${each.id} each=${each} />`)}${more > 0 ? html`<li>and ${more} more</li>` : null}</ul></div><span class="flow-arrow" aria-hidden="true">→</span>` : null}
        <div class="flow-self"><h3>This job</h3><ul><li><strong>${record.job.id}</strong> <bdi>${name}</bdi></li></ul></div>
        ${before.length ? html`<span class="flow-arrow" aria-hidden="true">→</span><div><h3>These wait for it</h3><ul>${before.map((each) => html`<${Node} key=${each.id} each=${each} />`)}</ul></div>` : null}
      </div>
    <//>
  `;
}
