// Makes stories of values that come as JSON on standard input, and prints them as JSON.
import { failureWords } from "../../../../gpuqueue/web/failure-words.js";
import { commandOf, limitWords } from "../../../../gpuqueue/web/job-words.js";
import { storyOf } from "../../../../gpuqueue/web/story.js";

let input = "";
for await (const each of process.stdin) input += each;
const found = JSON.parse(input).map(({ view, events, argv, failures, spec, limits }) => ({
  story: view ? storyOf(view, events).map((each) => [each.kind, each.words, each.detail, each.job ?? null]) : null,
  failures: (failures ?? []).map((each) => failureWords(each, spec)),
  command: argv ? commandOf(argv) : null,
  limits: (limits ?? []).map(limitWords),
}));
console.log(JSON.stringify(found));
