# The time that a key has, by the database's clock, and windows that rack-attack names by the application's.
require_relative "common"

class ClocksTest < Test
  # The start of a minute, and of an hour.
  TURN = 1_798_804_800

  # A store with functions that read a clock set by a test, as only a superuser may.
  def setup
    super
    @owner = opened(WAYS["active record"].call(user: "postgres", pool: 1))
    @store = store(@owner)
  end

  # The database's clock.
  def at(seconds)
    @owner.connection.execute("SELECT set_config('ratelimit.clock', '#{seconds * 1000}', false)")
  end

  # The counters of an application with a clock this number of seconds ahead of this instant.
  def application(seconds, ahead)
    Application.stands = seconds + ahead
    Rack::Attack.cache
  end

  def test_a_key_has_the_time_that_it_began_with
    at(TURN)
    @store.increment("k", expires_in: 10)
    at(TURN + 9)
    assert_equal 2, @store.increment("k", expires_in: 100)
    at(TURN + 9.999)
    assert_equal [2, 3], [@store.read("k"), @store.increment("k", expires_in: 1)]
    at(TURN + 10)
    assert_nil @store.read("k")
    assert_equal 1, @store.increment("k", expires_in: 2)
    at(TURN + 11.999)
    assert_equal 1, @store.read("k")
    at(TURN + 12)
    assert_nil @store.read("k")
  end

  def test_a_number_that_is_set_has_a_new_time
    at(TURN)
    @store.increment("k", expires_in: 10)
    at(TURN + 9)
    @store.write("k", 5, expires_in: 10)
    at(TURN + 18)
    assert_equal 5, @store.read("k")
    at(TURN + 19)
    assert_nil @store.read("k")
  end

  def test_a_time_is_rounded_up_to_seconds_and_without_one_it_is_three_years
    at(TURN)
    @store.increment("short", expires_in: 0.2)
    @store.increment("ever")
    @store.write("long", 1, expires_in: Float::INFINITY)
    at(TURN + 0.9)
    assert_equal 1, @store.read("short")
    at(TURN + 98_999_999)
    assert_equal([nil, 1, 1], %w[short ever long].map { |key| @store.read(key) })
    assert_equal 2, @store.increment("ever")
    at(TURN + 99_000_000)
    assert_equal [nil, nil, 1], [@store.read("ever"), @store.read("long"), @store.increment("ever")]
  end

  def test_a_clock_that_steps_back_ends_no_key
    at(TURN)
    @store.increment("k", expires_in: 10)
    at(TURN - 10)
    assert_equal [1, 2], [@store.read("k"), @store.increment("k", expires_in: 10)]
    at(TURN + 9)
    assert_equal 2, @store.read("k")
  end

  [-3600, -10, 0, 10, 3600].each do |ahead|
    define_method("test_rack_attack_counts_by_a_clock_that_is_#{ahead}_seconds_ahead") do
      Rack::Attack.cache.store = @store
      counts = [0, 59, 60, 119, 120].map do |passed|
        at(TURN + passed)
        application(TURN + passed, ahead).count("by ip", 60)
      end
      # Windows begin by the application's clock.
      assert_equal((ahead % 60).zero? ? [1, 2, 1, 2, 1] : [1, 1, 2, 1, 2], counts)
    end
  end

  # Otherwise what the first of them has begun would end before the last of them ends it, and admit as many again.
  def test_a_window_of_rack_attack_is_one_for_applications_whose_clocks_differ
    Rack::Attack.cache.store = @store
    at(TURN)
    assert_equal 1, application(TURN, 0).count("by ip", 60)
    at(TURN + 69.5)
    assert_equal 2, application(TURN + 69.5, -10).count("by ip", 60)
    Rack::Attack.cache.prefix = "a.prefix"
    at(TURN)
    assert_equal 1, application(TURN, 0).count("by ip", 60)
    at(TURN + 69.5)
    assert_equal 2, application(TURN + 69.5, -10).count("by ip", 60)
    at(TURN + 130)
    assert_equal 1, @store.increment("a.prefix:#{TURN / 60}:by ip")
  end

  def test_no_other_key_is_kept_for_longer
    ["k", "rack::attack:by ip", "rate-limit:1:1.2.3.4"].each do |key|
      at(TURN)
      @store.increment(key, expires_in: 61)
      at(TURN + 61)
      assert_equal 1, @store.increment(key, expires_in: 61)
    end
  end
end
