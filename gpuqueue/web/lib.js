// The parts of Preact that the page uses, with htm in place of JSX, so that nothing is built.
import htm from "./vendor/htm.js";
import { Fragment, h, render } from "./vendor/preact.js";

export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { Fragment, render };

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(/** @type {any} */ (h));
