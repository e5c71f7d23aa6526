// What the page offers to whom. The service decides; the page only leaves out what it would refuse.

/** Whether the caller may change a job. @param {import("./types.js").Me} me @param {import("./types.js").QueueRow} row */
export const mayChange = (me, row) => me.admin || (me.scopes.includes("submit") && row.user === me.account && row.uid === me.uid);

/** Whether the caller may only look. @param {import("./types.js").Me} me */
export const readsOnly = (me) => !me.scopes.includes("submit");

/** Why, in words. @param {import("./types.js").Me} me */
export const whyReadsOnly = (me) => (me.account ? "You signed in with a token that may only read, so you change nothing here." : "You have not signed in, so you change nothing here.");

/** Whether the caller may do something on the site, such as `drain`. @param {import("./types.js").Me} me @param {string} action */
export const mayOnSite = (me, action) => me.may.includes(action);
