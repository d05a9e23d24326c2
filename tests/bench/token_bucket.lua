-- The token bucket as one writes it for Redis: KEYS[1]; capacity, tokens a second, count.
local capacity, rate, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local row = redis.call('HMGET', KEYS[1], 'value', 'ts')
local value = tonumber(row[1]) or capacity
local elapsed = math.max(0, now - (tonumber(row[2]) or now))
value = math.min(capacity, value + elapsed * rate)
if value < count then
    return {0, tostring(value), tostring((count - value) / rate)}
end
value = value - count
redis.call('HSET', KEYS[1], 'value', string.format('%.17g', value), 'ts', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - value) / rate * 1000) + 60000)
return {1, tostring(value), '0'}
