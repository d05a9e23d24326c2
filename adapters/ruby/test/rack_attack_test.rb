# What rack-attack asks of its cache, in an application of Rack.
require_relative "common"
require "active_support/notifications"

class RackAttackTest < Test
  include Rack::Test::Methods

  def app
    Rack::Builder.new do
      use Rack::Lint
      use Rack::Attack
      use Rack::Lint
      run ->(_env) { [200, {}, ["hello"]] }
    end.to_app
  end

  # No window ends meanwhile.
  EVER = 10**9

  def setup
    super
    Rack::Attack.cache.store = store(libpq)
  end

  def statuses(paths, address = "192.0.2.1")
    paths.map { |path| get(path, {}, "REMOTE_ADDR" => address).status }
  end

  def test_throttle
    Rack::Attack.throttle("by ip", limit: 2, period: EVER, &:ip)
    assert_equal [200, 200, 429, 429], statuses(["/"] * 4)
    assert_equal 4, last_request.env["rack.attack.match_data"][:count]
    assert_equal [200], statuses(["/"], "192.0.2.2")
    Rack::Attack.reset!
    assert_equal [200, 200, 429], statuses(["/"] * 3)
  end

  def test_throttles_of_several_periods_count_apart
    Rack::Attack.throttle("by ip", limit: 3, period: EVER, &:ip)
    Rack::Attack.throttle("by ip, longer", limit: 2, period: EVER + 1, &:ip)
    assert_equal [200, 200, 429], statuses(["/"] * 3)
  end

  def test_fail2ban_and_its_reset
    options = { maxretry: 2, findtime: EVER, bantime: 60 }
    Rack::Attack.blocklist("pentesters") do |request|
      Rack::Attack::Fail2Ban.filter(request.ip, options) { request.path == "/etc" }
    end
    assert_equal [200, 403, 200, 403, 403], statuses(%w[/ /etc / /etc /])
    assert_equal [200], statuses(%w[/], "192.0.2.2")
    Rack::Attack::Fail2Ban.reset("192.0.2.1", options)
    assert_equal [200, 403, 200], statuses(%w[/ /etc /])
  end

  def test_allow2ban
    Rack::Attack.blocklist("logins") do |request|
      Rack::Attack::Allow2Ban.filter(request.ip, maxretry: 2, findtime: EVER, bantime: 60) { request.path == "/login" }
    end
    assert_equal [200, 200, 200, 403, 403], statuses(%w[/login / /login / /login])
  end

  def test_track
    counted = 0
    ActiveSupport::Notifications.subscribed(->(*) { counted += 1 }, "track.rack_attack") do
      Rack::Attack.track("many", limit: 1, period: EVER, &:ip)
      assert_equal [200, 200, 200], statuses(["/"] * 3)
    end
    assert_equal 2, counted
  end

  def test_a_counter_of_a_window_that_has_ended_is_not_read
    Rack::Attack.cache.count("by ip", 1)
    key = "rack::attack:#{Rack::Attack.cache.last_epoch_time}:by ip"
    wait_until { Rack::Attack.cache.store.read(key).nil? }
  end

  def test_discriminators_may_be_binary_and_of_any_length
    Rack::Attack.throttle("by path", limit: 1, period: EVER) { |request| request.env["HTTP_X_KEY"] }
    [("a" * 5000), "\xff\xfe".b, "é".b].each do |key|
      results = Array.new(2) { get("/", {}, "HTTP_X_KEY" => key).status }
      assert_equal [200, 429], results
    end
  end
end
