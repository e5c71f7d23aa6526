// The parts of Preact that the page uses, with htm in place of JSX, so that nothing is built.
import htm from "./vendor/htm.js";
import { Fragment, h, render } from "./vendor/preact.js";

export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { Fragment, render };

/** Characters without a glyph that change the direction of the text around them: a name could look like another one. */
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
/** Attributes that people read. */
const READ = ["title", "aria-label", "placeholder"];

/** Return what is shown with a mark in place of each such character, as the command line shows it. @param {any} value @returns {any} */
export function visible(value) {
  if (typeof value === "string") return value.replace(DIRECTIONS, "\ufffd");
  return Array.isArray(value) ? value.map(visible) : value;
}

/** @param {any} type @param {Record<string, any> | null} props @param {any[]} children */
function shown(type, props, ...children) {
  for (const name of READ) if (props && typeof props[name] === "string") props[name] = visible(props[name]);
  return h(type, props, ...children.map(visible));
}

/** Make what is shown. All text of the page goes through here, but for the title of the window. @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(/** @type {any} */ (shown));
