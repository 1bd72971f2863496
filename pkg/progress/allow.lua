-- A token bucket as one number: the time, in microseconds, at which it is full
-- again (the generic cell rate algorithm). Returns 0, or the microseconds after
-- which the tokens will be there.
-- KEYS[1] bucket; ARGV: microseconds a token, burst, tokens wanted.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval = tonumber(ARGV[1])
local capacity = interval * tonumber(ARGV[2])
local full = tonumber(redis.call('GET', KEYS[1]) or '0')
-- never before now, and never further ahead than an empty bucket
full = math.min(math.max(full, now), now + capacity)
local next = full + interval * tonumber(ARGV[3])
local wait = next - capacity - now
if wait > 0 then
  return math.ceil(wait)
end
-- %.0f: tostring would round to 14 digits
redis.call('SET', KEYS[1], string.format('%.0f', next), 'PX', string.format('%.0f', math.ceil((next - now) / 1000)))
return 0
