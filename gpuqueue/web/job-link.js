// Where a job is on the page.

/** The link of a job. @param {string} label such as 17 or 17_2 */
export const jobLink = (label) => `#/jobs/${label}`;
