// A row of buttons, of which one is chosen.
import { html } from "../lib.js";

/**
 * @param {object} props
 * @param {string} props.label
 * @param {[string, any][]} props.choices values, and what is shown for each
 * @param {string} props.chosen
 * @param {(value: string) => void} props.onChoose
 * @param {string} [props.kind]
 */
export function Tabs({ label, choices, chosen, onChoose, kind = "" }) {
  return html`
    <div class=${`tabs ${kind}`} role="group" aria-label=${label}>
      ${choices.map(([value, words]) => html`<button key=${value} type="button" aria-pressed=${value === chosen} onClick=${() => onChoose(value)}>${words}</button>`)}
    </div>
  `;
}
