// A bar with a share, beside the number that it shows.
import { html } from "../lib.js";

/**
 * @param {object} props
 * @param {number} props.share from 0 to 1; more is shown as full
 * @param {string} [props.words] what it shows, if no text beside it says so
 * @param {string} [props.kind] its colour: used or bad
 */
export function Meter({ share, words, kind = "used" }) {
  const width = `${Math.min(1, Math.max(0, share)) * 100}%`;
  return html`<span class=${`meter ${kind}`} role=${words ? "img" : undefined} aria-label=${words} title=${words} aria-hidden=${words ? undefined : "true"}><i style=${{ width }}></i></span>`;
}
