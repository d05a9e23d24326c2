-- A load for wrk: requests with the header x-key, in which ARGS[1] keys follow each other. Prints what adapters.py
-- reads.
local requests, n = {}, 0
function init(args)
    for key = 1, tonumber(args[1]) do
        requests[key] = wrk.format(nil, nil, { ['x-key'] = 'key-' .. key })
    end
end
function request()
    n = n % #requests + 1
    return requests[n]
end
function done(summary, latency)
    local errors = summary.errors
    local failed = errors.connect + errors.read + errors.write + errors.timeout
    print(string.format('{"requests": %d, "us": %d, "p99": %d, "refused": %d, "failed": %d}', summary.requests,
        summary.duration, latency:percentile(99), errors.status, failed))
end
