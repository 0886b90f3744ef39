-- The requests that wrk sends: the bodies of a file, one in each line, in turn.
-- wrk … -s requests.lua ADDRESS -- PATH FILE
-- At the end it prints one line of JSON.

local requests = {}
local number = 0

function init(arguments)
  local headers = { ["content-type"] = "application/json" }
  for body in io.lines(arguments[2]) do
    requests[#requests + 1] = wrk.format("POST", arguments[1], headers, body)
  end
end

function request()
  number = number + 1
  return requests[number % #requests + 1]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "duration_s": %.6f, "p50_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout
  ))
end
