// The values of the API that the views of the history, of the statistics and of the form use.

/** @typedef {import("./job-types.js").Job} HistoryJob */
/** @typedef {import("./job-types.js").Run} HistoryRun */

/** @typedef {{job: HistoryJob, runs: HistoryRun[], outcome: string}} HistoryRecord */

/** @typedef {{record: HistoryRecord, words: string}} HistoryRow */

/** @typedef {{rows?: HistoryRow[], records?: HistoryRecord[], after_id: number | null}} HistoryPage */

/**
 * @typedef {object} Figures
 * @property {number} jobs
 * @property {number} runs
 * @property {number} gpu_s
 * @property {number} cpu_s
 * @property {number} held_s the sum of the times of runs on devices
 * @property {number} asked_byte_s
 * @property {number} measured_byte_s
 * @property {number} peak_byte_s
 * @property {number} measured_s
 * @property {number | null} utilisation
 * @property {number | null} wait_mean_s
 * @property {number | null} wait_median_s
 * @property {number | null} wait_p95_s
 * @property {number} ended
 * @property {number} succeeded
 * @property {number} cancelled
 * @property {number} out_of_memory
 * @property {number} timed_out
 * @property {number} lost
 */

/** @typedef {{key: string, label: string, figures: Figures}} Group */

/** @typedef {{by: string, since: string, until: string, first_at: string | null, last_at: string | null, groups: Group[], total: Figures}} Statistics */

/**
 * @typedef {object} JobForm
 * @property {string} script
 * @property {string} snapshot
 * @property {string} environment
 * @property {string} python
 * @property {string} args
 * @property {string} mem
 * @property {number | null} gpus
 * @property {string} device
 * @property {string} time_limit
 * @property {string} cpus
 * @property {string} cpu_mem
 * @property {string} name
 * @property {string} priority
 * @property {string} pool
 * @property {string} tags
 * @property {string} array
 * @property {string} sweep
 * @property {string} at_once
 * @property {string} after
 * @property {string} on_end
 * @property {string} on_fail
 */

/**
 * @typedef {object} FormStart
 * @property {JobForm} form
 * @property {number} file_bytes
 * @property {string | null} label
 * @property {string | null} command
 * @property {string | null} what
 * @property {string | null} again
 * @property {string | null} advice
 * @property {boolean} has_script
 * @property {string[]} warnings
 * @property {string[]} devices
 * @property {string[]} pools
 * @property {string[]} environments
 * @property {string[]} targets
 */

export {};
