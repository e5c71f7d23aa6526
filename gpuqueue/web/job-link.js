// Where a job is on the page.
import { link } from "./route.js";

/** The link of a job. @param {string} label such as 17 or 17_2 */
export const jobLink = (label) => link("queue", { text: label });
