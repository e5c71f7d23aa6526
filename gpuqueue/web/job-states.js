// What the states of a job mean for the page.

/** @param {string} state */
export const isEnd = (state) => ["succeeded", "failed", "cancelled", "lost"].includes(state);

/** @param {string} state */
export const isActive = (state) => ["starting", "running", "cancelling"].includes(state);

/** Reasons of jobs that wait for something else than their turn. */
export const NO_TURN = new Set(["dependency", "begin", "retry", "requeue", "array_limit", "pause", "held"]);
