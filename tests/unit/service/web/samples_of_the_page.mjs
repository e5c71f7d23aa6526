// Adds samples as a page does that is open for long, and prints what it keeps of them as JSON.
import { addSample, samplesOf } from "../../../../gpuqueue/web/samples.js";

const device = { uuid: "GPU-0", used_bytes: 5, silent: false, utilisation: 0.5 };
for (let second = 0; second < 5000; second += 1) addSample("1:1", second * 1000, [{ ...device, used_bytes: second }]);
const kept = samplesOf("1:1");
addSample("2:1", 0, [{ ...device, silent: true }]);
addSample("2:1", 0, [device]);
const silent = samplesOf("2:1");
for (let run = 0; run < 40; run += 1) addSample(`many:${run}`, 0, [device]);
console.log(
  JSON.stringify({
    count: kept.length,
    ordered: kept.every((each, place) => !place || kept[place - 1].at < each.at),
    first: kept[0]?.at,
    last: kept[kept.length - 1]?.at,
    silent,
    runs: [samplesOf("many:39").length, samplesOf("many:5").length],
  }),
);
