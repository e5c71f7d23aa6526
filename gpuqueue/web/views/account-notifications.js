// Where messages about jobs can go, and which of that the form to submit a job begins with in this browser.
import { address } from "../api.js";
import { html, useState } from "../lib.js";
import { Field } from "../parts/field.js";
import { Panel } from "../parts/panel.js";
import { Trouble } from "../parts/trouble.js";
import { useRead } from "../reading.js";
import { remember, remembered } from "../storage.js";

/** @typedef {{host: string, targets: string[], schemes: string[], urls: boolean}} Sender */

/** What the form begins with for an account. @param {string} account @returns {{on_end: string, on_fail: string}} */
export function usualTargets(account) {
  return { on_end: remembered(`on_end.${account}`) ?? "", on_fail: remembered(`on_fail.${account}`) ?? "" };
}

/** @param {{me: import("../types.js").Me}} props */
export function Notifications({ me }) {
  /** @type {import("../reading.js").Once<Sender[]>} */
  const { value: senders, error } = useRead(address("/notification-senders"));
  /** @type {import("../reading.js").Once<{why: string | null}>} */
  const { value: trouble } = useRead(address("/notification-trouble"));
  const [usual, setUsual] = useState(usualTargets(me.account));
  const targets = [...new Set((senders ?? []).flatMap((each) => each.targets))].sort();
  /** @param {"on_end" | "on_fail"} name @param {string} label @param {string} hint */
  const field = (name, label, hint) => html`
    <${Field} id=${name} label=${label} hint=${hint}>
      <input id=${name} value=${usual[name]} list="account-targets" autocomplete="off" spellcheck="false" aria-describedby=${`${name}-hint`}
        onInput=${(/** @type {any} */ event) => {
          const text = event.currentTarget.value;
          remember(`${name}.${me.account}`, text.trim() || null);
          setUsual({ ...usual, [name]: text });
        }} /><//>`;
  return html`
    <${Panel} name="notifications" title="Notifications">
      <${Trouble} error=${error} />
      ${trouble?.why ? html`<p class="banner" role="status">${trouble.why}</p>` : null}
      ${senders ? html`<p>${targets.length ? html`Targets of this site: ${targets.map((each, place) => html`${place ? ", " : ""}<code>${each}</code>`)}. A mail address works too if there is a target <code>mail</code>.` : "This site has no targets: its administrator names some in the setting notify."}</p>` : null}
      <p>The form to submit a job begins with these. This browser keeps them.</p>
      <div class="fields">
        ${field("on_end", "At the end of a job", "Targets with spaces between them, for any ending")}
        ${field("on_fail", "If a job does not succeed", "Targets for any ending but success")}
      </div>
      <datalist id="account-targets">${targets.map((each) => html`<option key=${each} value=${each} />`)}</datalist>
      <p class="note">Those of a job that waits change in its own view, with Edit.</p>
    <//>
  `;
}
