// One job in words: its state.
import { STATES } from "./words.js";

/** @type {Record<string, string>} */
const ENDED = { succeeded: "succeeded", failed: "failed", cancelled: "cancelled", lost: "lost" };

/** @param {string | null} state */
export const stateWords = (state) => (state === null ? "just ended" : (STATES[state] ?? ENDED[state] ?? state));

/** @param {string} state */
export const isEnd = (state) => state in ENDED;

/** @param {string} state */
export const isActive = (state) => ["starting", "running", "cancelling"].includes(state);

/**
 * Whether a job was made by the form of the page: such a job has its code, and no directory.
 * @param {import("./job-types.js").Spec} spec
 */
export const isFromPage = (spec) => spec.cwd === "/" && Boolean(spec.snapshot);
