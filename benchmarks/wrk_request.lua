-- One fixed POST request for wrk, and its figures as one line of JSON.
-- wrk -s wrk_request.lua URL -- BODY_FILE "Name: value" ...
-- There is no request() here: without it wrk formats the request once and runs no Lua per request.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  for i = 2, #args do
    local name, value = args[i]:match("^([^:]+): (.*)$")
    wrk.headers[name] = value
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'FIGURES {"requests": %d, "seconds": %.6f, "errors": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
