-- The kinds: what messages call one, the letter of its rows, which is t where tokens can be given back, the fields of
-- its config and its state, and the arguments of an example.
CREATE OR REPLACE FUNCTION ratelimit._all_kinds() RETURNS TABLE (kind text, called text, letter "char", fields text[],
    state text[], example text) IMMUTABLE LANGUAGE sql AS $$
    VALUES
        ('token bucket', 'a token bucket', 't'::"char", '{rate,period,capacity,maxReserved,shards,start}'::text[],
         '{value,ts}'::text[], 'rate => 10, period => ''1 minute'''),
        ('fixed window', 'a fixed window', 't', '{rate,period,capacity,maxReserved,shards,start,timezone,overage}',
         '{value,ts,added}', 'rate => 10, period => ''1 minute'''),
        ('sliding window', 'a sliding window', 's', '{rate,period}', '{value,ts,prior}',
         'rate => 10, period => ''1 minute'''),
        ('sliding log', 'a sliding log', 'l', '{rate,period}', '{value,ts,log}',
         'rate => 10, period => ''1 minute'''),
        ('concurrency', 'a concurrency limit', 'c', '{slots,ttl}', '{value,ts,leases}',
         'slots => 3, ttl => ''5 minutes'''),
        ('unlimited', 'an unlimited one', NULL, '{}', '{}', '')
$$;

CREATE OR REPLACE FUNCTION ratelimit._called(kind text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT k.called FROM ratelimit._all_kinds() k WHERE k.kind = $1
$$;

-- The call that defines a limit of a kind, or one with a calendar.
CREATE OR REPLACE FUNCTION ratelimit._example(name text, kind text, calendar boolean DEFAULT false) RETURNS text
IMMUTABLE LANGUAGE sql AS $$
    SELECT format('SELECT ratelimit.rl_define(%s, ratelimit.rl_%s(%s));', ratelimit._literal(name),
        replace(k.kind, ' ', '_'), CASE WHEN calendar AND k.kind = 'fixed window'
        THEN 'rate => 1000, period => ''1 month'', timezone => ''Europe/Berlin''' ELSE k.example END)
    FROM ratelimit._all_kinds() k WHERE k.kind = $2
    UNION ALL SELECT format('SELECT ratelimit.rl_define(%s, ''{"plan": "pro"}'', ''user-1'');',
        ratelimit._literal(name)) WHERE kind = 'plan'
$$;
